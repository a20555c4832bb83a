// What Confluent's client for Node.js can do with a node: each check is a function, its outcome a line "client, what, result",
// parted by tabs.
//
// usage: node check.js ADDRESS
'use strict'

const { spawn } = require('node:child_process')
const { KafkaJS, features, librdkafkaVersion } = require('@confluentinc/kafka-javascript')

const { Kafka, logLevel } = KafkaJS
const [address, role, topicOfMember, protocolOfMember] = process.argv.slice(2)
const kafka = new Kafka({ kafkaJS: { clientId: 'check', brokers: [address], logLevel: logLevel.NOTHING } })
const partitions = 6
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

function expect(found, wanted, what) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${what}: ${JSON.stringify(found)?.slice(0, 100)}`)
}

async function until(condition, what, seconds = 60) {
  for (const limit = Date.now() + seconds * 1000; Date.now() < limit; await sleep(100)) if (await condition()) return
  throw new Error(`${what}: not in ${seconds} s`)
}

async function withAdmin(use) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await use(admin)
  } finally {
    await admin.disconnect()
  }
}

const create = (topic, numPartitions) => withAdmin((admin) => admin.createTopics({ topics: [{ topic, numPartitions }] }))
const named = (name, count) => Array.from({ length: count }, (_, i) => `${name} ${i}`)

async function produce(topic, name, count, parts, options = {}) {
  const producer = kafka.producer({ kafkaJS: options })
  await producer.connect()
  const messages = named(name, count).map((value, i) => ({ key: `k${i}`, value, partition: i % parts, headers: { h: 'x' } }))
  await producer.send({ topic, messages })
  await producer.disconnect()
}

// Reads until there is as much as is wanted, and a moment longer: more would be wrong, too.
async function read(topic, count, { seek, ...options } = {}) {
  const more = { autoCommit: false, fromBeginning: true, ...options }
  const consumer = kafka.consumer({ kafkaJS: { groupId: `read-${topic}-${Math.random()}`, ...more } })
  await consumer.connect()
  await consumer.subscribe({ topic })
  const found = []
  await consumer.run({ eachMessage: async ({ message }) => void found.push(message) })
  if (seek !== undefined) {
    await until(() => consumer.assignment().length > 0, 'partitions are assigned')
    found.length = 0
    consumer.seek({ topic, partition: 0, offset: String(seek) })
    await until(() => found.at(-1)?.offset === String(seek + count - 1), 'the last record is read')
    found.splice(0, found.findLastIndex((message) => message.offset === String(seek)))
  }
  await until(() => found.length >= count, `${count} records are read, ${found.length} were`)
  await sleep(500)
  await consumer.disconnect()
  return found.map((message) => String(message.value))
}

async function admin() {
  await withAdmin(async (admin) => {
    const topic = 'cjs-admin'
    await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] })
    expect((await admin.fetchTopicMetadata({ topics: [topic] }))[0].partitions.length, 3, 'partitions')
    await produce(topic, 'v', 300, 3)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '40' }] })
    const offsets = await admin.fetchTopicOffsets(topic)
    expect(offsets.find((one) => one.partition === 0).low, '40', 'where the partition starts')
    await admin.deleteTopics({ topics: [topic] })
    expect((await admin.listTopics()).includes(topic), false, 'still there')
  })
}

function compressed(compression) {
  return async () => {
    const topic = `cjs-${compression}`
    await create(topic, 3)
    await produce(topic, 'all', 3000, 3, { compression })
    await produce(topic, 'idempotent', 300, 3, { compression, idempotent: true })
    await produce(topic, 'leader', 300, 3, { compression, acks: 1 })
    const wanted = [...named('all', 3000), ...named('idempotent', 300), ...named('leader', 300)]
    expect((await read(topic, wanted.length)).sort(), wanted.sort(), 'what is read')
  }
}

async function seeks() {
  await create('cjs-seek', 1)
  await produce('cjs-seek', 'v', 1000, 1)
  expect(await read('cjs-seek', 400, { seek: 600 }), named('v', 1000).slice(600), 'from 600 on')
  await withAdmin(async (admin) => {
    const [before] = await admin.fetchTopicOffsetsByTimestamp('cjs-seek', Date.now() - 3600e3)
    expect(before.offset, '0', 'offset an hour ago')
    const [end] = await admin.fetchTopicOffsets('cjs-seek')
    expect([end.low, end.high], ['0', '1000'], 'watermarks')
  })
}

// A group of the consumer protocol has the broker's times.
function memberOf(groupId, protocol) {
  const isNew = protocol === 'consumer'
  const kafkaJS = { groupId, fromBeginning: true, autoCommit: true, autoCommitInterval: 200, ...(isNew ? {} : { sessionTimeout: 6000 }) }
  return kafka.consumer({ kafkaJS, 'group.protocol': protocol })
}

// Reads in a group until it is killed: a process of its own, so that it can die without a word.
async function member(topic, protocol) {
  const consumer = memberOf(topic, protocol)
  await consumer.connect()
  await consumer.subscribe({ topic })
  await consumer.run({ eachMessage: async ({ message }) => void process.stdout.write(`${message.value}\n`) })
}

function group(protocol) {
  return async () => {
    const topic = `cjs-group-${protocol}`
    await create(topic, partitions)
    await produce(topic, 'before', 600, partitions)
    let found = ''
    const start = () => {
      const child = spawn(process.execPath, [__filename, address, 'member', topic, protocol], { stdio: ['ignore', 'pipe', 'ignore'] })
      child.stdout.on('data', (data) => (found += data))
      return child
    }
    const [first, second] = [start(), start()]
    try {
      await withAdmin(async (admin) => {
        const members = async () => {
          const { groups } = await admin.describeGroups([topic])
          return groups[0].members.filter((one) => one.assignment?.topicPartitions?.length > 0).length
        }
        await until(async () => (await members()) === 2, 'two members')
        first.kill('SIGKILL')
        await until(async () => (await members()) === 1, 'a member that died is missed')
        await produce(topic, 'after', 600, partitions)
        const committed = async () => {
          const [{ partitions }] = await admin.fetchOffsets({ groupId: topic, topics: [topic] })
          return partitions.reduce((sum, { offset }) => sum + Number(offset), 0)
        }
        await until(async () => (await committed()) === 1200, 'everything is committed')
        // The session of the consumer protocol is the broker's, and long: to wait for its end once is enough.
        if (protocol === 'consumer') return
        second.kill('SIGKILL')
        await until(async () => (await members()) === 0, 'nobody is left')
        await admin.deleteGroups([topic])
      })
    } finally {
      first.kill('SIGKILL')
      second.kill('SIGKILL')
    }
    const wanted = [...named('before', 600), ...named('after', 600)].sort()
    expect([...new Set(found.trim().split('\n'))].sort(), wanted, 'what was read')
  }
}

async function transactions() {
  const topic = 'cjs-txn'
  await create(topic, 3)
  const producer = kafka.producer({ kafkaJS: { transactionalId: 'cjs' } })
  await producer.connect()
  const consumer = kafka.consumer({ kafkaJS: { groupId: 'cjs-txn-group', autoCommit: false, fromBeginning: true } })
  await consumer.connect()
  await consumer.subscribe({ topic: 'cjs-seek' })
  await consumer.run({ eachMessage: async () => {} })
  await until(() => consumer.assignment().length > 0, 'partitions are assigned')
  for (const [name, commit] of [['a', true], ['b', false], ['c', true]]) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: named(name, 300).map((value, i) => ({ value, partition: i % 3 })) })
    const offsets = [{ partition: 0, offset: { a: '40', b: '60', c: '100' }[name] }]
    await transaction.sendOffsets({ consumer, topics: [{ topic: 'cjs-seek', partitions: offsets }] })
    await (commit ? transaction.commit() : transaction.abort())
    const [{ partitions }] = await withAdmin((admin) => admin.fetchOffsets({ groupId: 'cjs-txn-group', topics: ['cjs-seek'] }))
    expect(partitions[0].offset, name === 'c' ? '100' : '40', `the committed offset after ${name}`)
  }
  await consumer.disconnect()
  await producer.disconnect()
  const committed = [...named('a', 300), ...named('c', 300)].sort()
  expect((await read(topic, 600)).sort(), committed, 'what was committed')
  expect((await read(topic, 900, { readUncommitted: true })).length, 900, 'what others read')
}

async function main() {
  if (role === 'member') return member(topicOfMember, protocolOfMember)
  const release = require('@confluentinc/kafka-javascript/package.json').version
  if (!features.includes('zstd')) console.log('kafka-javascript was built where the headers of zstd (libzstd-dev) are not: zstd is not tried')
  for (const [what, run] of [
    ['topics: create, describe, delete records, delete', admin],
    ...['none', 'gzip', 'snappy', 'lz4', ...features.filter((one) => one === 'zstd')].map((kind) => [
      `produce and consume, compression ${kind}, acks all, idempotent, acks 1`,
      compressed(kind),
    ]),
    ['seek, offsets by time, watermarks', seeks],
    ['group, classic protocol: members join, one is killed, the other goes on', group('classic')],
    ['group, consumer protocol (KIP-848): the same', group('consumer')],
    ['transactions: commit, abort, offsets of a group, read_committed', transactions],
  ]) {
    let result = 'works'
    try {
      await run()
    } catch (error) {
      result = `fails: ${error.message}`.replaceAll(/\s+/g, ' ')
    }
    console.log(`kafka-javascript ${release}, librdkafka ${librdkafkaVersion}\t${what}\t${result}`)
  }
  process.exit(0)
}

main()
