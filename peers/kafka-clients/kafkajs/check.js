// What KafkaJS can do with a node: each check is a function, its outcome a line "client, what, result", parted by tabs.
//
// usage: node check.js ADDRESS
'use strict'

const { spawn } = require('node:child_process')
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel, Partitioners } = require('kafkajs')
const lz4 = require('lz4js')
const snappy = require('kafkajs-snappy')
const zstd = require('@bokuweb/zstd-wasm')

const [address, role, topicOfMember] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'check', brokers: [address], logLevel: logLevel.NOTHING })
const partitions = 6
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})

function expect(found, wanted, what) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${what}: ${JSON.stringify(found)?.slice(0, 100)}`)
}

async function until(condition, what, seconds = 30) {
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

async function produce(topic, name, count, parts, options = {}, batch = {}) {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...options })
  await producer.connect()
  const messages = named(name, count).map((value, i) => ({ key: `k${i}`, value, partition: i % parts, headers: { h: 'x' } }))
  await producer.send({ topic, messages, ...batch })
  await producer.disconnect()
}

// Reads until there is as much as is wanted, and a moment longer: more would be wrong, too.
async function read(topic, count, { seek, ...options } = {}) {
  const consumer = kafka.consumer({ groupId: `read-${topic}-${Math.random()}`, maxWaitTimeInMs: 200, ...options })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = []
  await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void found.push(message) })
  if (seek !== undefined) consumer.seek({ topic, partition: 0, offset: String(seek) })
  await until(() => found.length >= count, `${count} records are read, ${found.length} were`)
  await sleep(500)
  await consumer.disconnect()
  return found.map((message) => String(message.value))
}

async function admin() {
  await withAdmin(async (admin) => {
    const topic = 'js-admin'
    await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] })
    expect((await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length, 3, 'partitions')
    const type = ConfigResourceTypes.TOPIC
    const configEntries = [{ name: 'retention.ms', value: '60000' }]
    await admin.alterConfigs({ validateOnly: false, resources: [{ type, name: topic, configEntries }] })
    const { resources } = await admin.describeConfigs({ resources: [{ type, name: topic, configNames: ['retention.ms'] }] })
    expect(resources[0].configEntries[0].configValue, '60000', 'retention.ms')
    await produce(topic, 'v', 300, 3)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '40' }] })
    const offsets = await admin.fetchTopicOffsets(topic)
    expect(offsets.find((one) => one.partition === 0).low, '40', 'where the partition starts')
    await admin.deleteTopics({ topics: [topic] })
    expect((await admin.listTopics()).includes(topic), false, 'still there')
  })
}

function compressed(name, compression) {
  return async () => {
    const topic = `js-${name}`
    await create(topic, 3)
    await produce(topic, 'all', 3000, 3, {}, { compression })
    await produce(topic, 'idempotent', 300, 3, { idempotent: true }, { compression })
    await produce(topic, 'leader', 300, 3, {}, { compression, acks: 1 })
    const wanted = [...named('all', 3000), ...named('idempotent', 300), ...named('leader', 300)]
    expect((await read(topic, wanted.length)).sort(), wanted.sort(), 'what is read')
  }
}

async function seeks() {
  await create('js-seek', 1)
  await produce('js-seek', 'v', 1000, 1)
  expect(await read('js-seek', 400, { seek: 600 }), named('v', 1000).slice(600), 'from 600 on')
  await withAdmin(async (admin) => {
    const [before] = await admin.fetchTopicOffsetsByTimestamp('js-seek', Date.now() - 3600e3)
    expect(before.offset, '0', 'offset an hour ago')
    const [end] = await admin.fetchTopicOffsets('js-seek')
    expect([end.low, end.high], ['0', '1000'], 'watermarks')
  })
}

const groupOptions = (groupId) => ({ groupId, sessionTimeout: 6000, heartbeatInterval: 500, maxWaitTimeInMs: 200 })

// Reads in a group until it is killed: a process of its own, so that it can die without a word.
async function member(topic) {
  const consumer = kafka.consumer(groupOptions(topic))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const eachMessage = async ({ message }) => void process.stdout.write(`${message.value}\n`)
  await consumer.run({ autoCommitThreshold: 1, eachMessage })
}

async function group() {
  const topic = 'js-group'
  await create(topic, partitions)
  await produce(topic, 'before', 600, partitions)
  let found = ''
  const start = () => {
    const child = spawn(process.execPath, [__filename, address, 'member', topic], { stdio: ['ignore', 'pipe', 'inherit'] })
    child.stdout.on('data', (data) => (found += data))
    return child
  }
  const [first, second] = [start(), start()]
  try {
    await withAdmin(async (admin) => {
      const members = async () => {
        const { groups } = await admin.describeGroups([topic])
        return groups[0].state === 'Stable' ? groups[0].members.length : 0
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

async function transactions() {
  const topic = 'js-txn'
  await create(topic, 3)
  const producer = kafka.producer({ transactionalId: 'js', idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  for (const [name, commit] of [['a', true], ['b', false], ['c', true]]) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: named(name, 300).map((value, i) => ({ value, partition: i % 3 })) })
    const offsets = [{ partition: 0, offset: { a: '40', b: '60', c: '100' }[name] }]
    await transaction.sendOffsets({ consumerGroupId: 'js-txn-group', topics: [{ topic: 'js-seek', partitions: offsets }] })
    await (commit ? transaction.commit() : transaction.abort())
    const [{ partitions }] = await withAdmin((admin) => admin.fetchOffsets({ groupId: 'js-txn-group', topics: ['js-seek'] }))
    expect(partitions[0].offset, name === 'c' ? '100' : '40', `the committed offset after ${name}`)
  }
  await producer.disconnect()
  const committed = [...named('a', 300), ...named('c', 300)].sort()
  expect((await read(topic, 600)).sort(), committed, 'what was committed')
  expect((await read(topic, 900, { readUncommitted: true })).length, 900, 'what others read')
}

async function main() {
  await zstd.init()
  if (role === 'member') return member(topicOfMember)
  const release = require('kafkajs/package.json').version
  for (const [what, run] of [
    ['topics: create, describe, describe and alter configurations, delete records, delete', admin],
    ['produce and consume, compression none, acks all, idempotent, acks 1', compressed('none', CompressionTypes.None)],
    ['produce and consume, compression gzip, acks all, idempotent, acks 1', compressed('gzip', CompressionTypes.GZIP)],
    ['produce and consume, compression snappy, acks all, idempotent, acks 1', compressed('snappy', CompressionTypes.Snappy)],
    ['produce and consume, compression lz4, acks all, idempotent, acks 1', compressed('lz4', CompressionTypes.LZ4)],
    ['produce and consume, compression zstd, acks all, idempotent, acks 1', compressed('zstd', CompressionTypes.ZSTD)],
    ['seek, offsets by time, watermarks', seeks],
    ['group, classic protocol: members join, one is killed, the other goes on', group],
    ['transactions: commit, abort, offsets of a group, read_committed', transactions],
  ]) {
    let result = 'works'
    try {
      await run()
    } catch (error) {
      result = `fails: ${error.message}`.replaceAll(/\s+/g, ' ')
    }
    console.log(`KafkaJS ${release}\t${what}\t${result}`)
  }
  process.exit(0)
}

main()
