import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * What Kafka's Java client can do with a node: each check is a method, its outcome a line "client, what, result", parted by tabs.
 *
 * <p>usage: Check ADDRESS. It is compiled against each release that is tried; what their interfaces do not share is asked for by name.
 */
final class Check {
  private static final String RELEASE = AppInfoParser.getVersion();
  private static final int PARTITIONS = 6;
  private static final Duration BRIEFLY = Duration.ofMillis(200);
  /** A member of the consumer protocol is missed after the node's 45 seconds. */
  private static final long PATIENCE_S = 90;

  private static String address;

  private interface Step {
    void run() throws Exception;
  }

  private static String own(String name) {
    return "java-" + RELEASE + "-" + name;
  }

  private static void expect(Object found, Object wanted, String what) {
    if (!Objects.equals(found, wanted)) {
      String shown = String.valueOf(found);
      throw new AssertionError(what + ": " + shown.substring(0, Math.min(100, shown.length())) + " instead of " + wanted);
    }
  }

  private static void until(Callable<Object> is, Object wanted, String what) throws Exception {
    Object found = is.call();
    for (long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S); !Objects.equals(found, wanted); found = is.call()) {
      if (System.nanoTime() > limit) {
        throw new AssertionError(what + ": not in " + PATIENCE_S + " s, " + found);
      }
      Thread.sleep(50);
    }
  }

  /** The first of these methods that this release has. */
  private static Object call(Object of, String... names) throws Exception {
    for (String name : names) {
      for (Method method : of.getClass().getMethods()) {
        if (method.getName().equals(name) && method.getParameterCount() == 0) {
          return method.invoke(of);
        }
      }
    }
    throw new AssertionError("no method " + Arrays.toString(names));
  }

  private static Map<String, Object> conf(Object... pairs) {
    Map<String, Object> conf = new LinkedHashMap<>();
    conf.put("bootstrap.servers", address);
    for (int at = 0; at < pairs.length; at += 2) {
      conf.put((String) pairs[at], pairs[at + 1]);
    }
    return conf;
  }

  private static KafkaProducer<String, String> producer(Object... pairs) {
    return new KafkaProducer<>(conf(pairs), new StringSerializer(), new StringSerializer());
  }

  private static KafkaConsumer<String, String> consumer(Object... pairs) {
    Map<String, Object> conf = conf("enable.auto.commit", "false", "auto.offset.reset", "earliest");
    conf.putAll(conf(pairs));
    return new KafkaConsumer<>(conf, new StringDeserializer(), new StringDeserializer());
  }

  private static AdminClient admin() {
    return AdminClient.create(conf());
  }

  private static void create(String topic, int partitions) throws Exception {
    try (AdminClient admin = admin()) {
      admin.createTopics(Collections.singleton(new NewTopic(topic, partitions, (short) 1))).all().get();
    }
  }

  private static List<String> values(String name, int count) {
    return IntStream.range(0, count).mapToObj(i -> name + " " + i).collect(Collectors.toList());
  }

  private static List<Future<RecordMetadata>> send(KafkaProducer<String, String> producer, String topic, List<String> values, int parts) {
    List<Future<RecordMetadata>> told = new ArrayList<>();
    for (int i = 0; i < values.size(); i++) {
      ProducerRecord<String, String> record = new ProducerRecord<>(topic, i % parts, "k" + i, values.get(i));
      record.headers().add("h", new byte[] {'x'});
      told.add(producer.send(record));
    }
    producer.flush();
    return told;
  }

  private static void produce(String topic, List<String> values, int parts, Object... pairs) throws Exception {
    try (KafkaProducer<String, String> producer = producer(pairs)) {
      HashSet<String> places = new HashSet<>();
      for (Future<RecordMetadata> told : send(producer, topic, values, parts)) {
        places.add(told.get().partition() + " " + told.get().offset());
      }
      expect(places.size(), values.size(), "places of the records");
    }
  }

  private static List<TopicPartition> places(String topic, int parts) {
    return IntStream.range(0, parts).mapToObj(part -> new TopicPartition(topic, part)).collect(Collectors.toList());
  }

  /** What a topic has, up to its ends (for read_committed the last stable ones), sorted. */
  private static List<String> read(String topic, int parts, String isolation) {
    try (KafkaConsumer<String, String> consumer = consumer("isolation.level", isolation)) {
      List<TopicPartition> places = places(topic, parts);
      consumer.assign(places);
      consumer.seekToBeginning(places);
      Map<TopicPartition, Long> ends = consumer.endOffsets(places);
      List<String> found = new ArrayList<>();
      long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
      while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
        if (System.nanoTime() > limit) {
          throw new AssertionError("the end is not reached: " + found.size() + " records");
        }
        consumer.poll(BRIEFLY).forEach(record -> found.add(record.value()));
      }
      Collections.sort(found);
      return found;
    }
  }

  @SafeVarargs
  private static List<String> sorted(Collection<String>... parts) {
    return Arrays.stream(parts).flatMap(Collection::stream).sorted().collect(Collectors.toList());
  }

  private static void topics() throws Exception {
    String topic = own("admin");
    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    TopicPartition first = new TopicPartition(topic, 0);
    try (AdminClient admin = admin(); KafkaConsumer<String, String> consumer = consumer()) {
      Map<String, String> settings = Collections.singletonMap("retention.ms", "50000");
      admin.createTopics(Collections.singleton(new NewTopic(topic, 2, (short) 1).configs(settings))).all().get();
      admin.createPartitions(Collections.singletonMap(topic, NewPartitions.increaseTo(3))).all().get();
      until(() -> partitionsOf(admin, topic), 3, "there are three partitions");
      expect(admin.listTopics().names().get().contains(topic), true, "listed");
      Callable<Object> setting = () -> admin.describeConfigs(Collections.singleton(resource)).all().get().get(resource).get("retention.ms").value();
      expect(setting.call(), "50000", "retention.ms");
      AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "60000"), AlterConfigOp.OpType.SET);
      admin.incrementalAlterConfigs(Collections.singletonMap(resource, Collections.singleton(set))).all().get();
      until(setting, "60000", "retention.ms, altered");
      produce(topic, values("v", 300), 3);
      admin.deleteRecords(Collections.singletonMap(first, RecordsToDelete.beforeOffset(40))).all().get();
      expect(consumer.beginningOffsets(Collections.singleton(first)).get(first), 40L, "where the partition begins");
      expect(admin.describeCluster().nodes().get().size(), 1, "nodes");
      admin.deleteTopics(Collections.singleton(topic)).all().get();
      until(() -> admin.listTopics().names().get().contains(topic), false, "it is gone");
    }
  }

  private static int partitionsOf(AdminClient admin, String topic) throws Exception {
    Object told = call(admin.describeTopics(Collections.singleton(topic)), "allTopicNames", "all");
    return ((TopicDescription) ((Map<?, ?>) ((KafkaFuture<?>) told).get()).get(topic)).partitions().size();
  }

  private static void compressed(String kind) throws Exception {
    String topic = own(kind);
    create(topic, 3);
    List<String> idempotent = values("idempotent", 1500);
    List<String> all = values("all", 1500);
    List<String> leader = values("leader", 1500);
    produce(topic, idempotent, 3, "compression.type", kind, "enable.idempotence", "true");
    produce(topic, all, 3, "compression.type", kind, "enable.idempotence", "false", "acks", "all");
    produce(topic, leader, 3, "compression.type", kind, "enable.idempotence", "false", "acks", "1");
    expect(read(topic, 3, "read_uncommitted").equals(sorted(idempotent, all, leader)), true, "what is read is what was written");
  }

  private static long following(KafkaConsumer<String, String> consumer) {
    for (long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S); System.nanoTime() < limit; ) {
      for (ConsumerRecord<String, String> record : consumer.poll(BRIEFLY)) {
        return record.offset();
      }
    }
    throw new AssertionError("nothing comes");
  }

  private static void seeks() throws Exception {
    String topic = own("seek");
    TopicPartition place = new TopicPartition(topic, 0);
    long start = 1_700_000_000_000L;
    create(topic, 1);
    try (KafkaProducer<String, String> producer = producer(); KafkaConsumer<String, String> consumer = consumer()) {
      for (int i = 0; i < 1000; i++) {
        producer.send(new ProducerRecord<>(topic, 0, start + i * 10L, "k", "v " + i));
      }
      producer.flush();
      consumer.assign(Collections.singleton(place));
      for (long at : new long[] {600, 3, 999}) {
        consumer.seek(place, at);
        expect(following(consumer), at, "the record that was sought");
      }
      consumer.seekToBeginning(Collections.singleton(place));
      expect(following(consumer), 0L, "the first record");
      consumer.seekToEnd(Collections.singleton(place));
      expect(consumer.position(place), 1000L, "the end");
      for (long[] pair : new long[][] {{-5, 0}, {4000, 400}, {4001, 401}, {9990, 999}}) {
        OffsetAndTimestamp told = consumer.offsetsForTimes(Collections.singletonMap(place, start + pair[0])).get(place);
        expect(told.offset(), pair[1], "offset by time");
        expect(told.timestamp(), start + pair[1] * 10, "time of it");
        consumer.seek(place, told.offset());
        expect(following(consumer), pair[1], "the record of that time");
      }
      expect(consumer.offsetsForTimes(Collections.singletonMap(place, start + 10_000)).get(place), null, "a time that has not come");
    }
  }

  /** Reads in a group until it is killed. It commits behind what is "kept" and, if it survives, behind all else too. */
  private static void beMember(String topic, String protocol, boolean survives) {
    Map<String, Object> more = conf("group.id", topic, "group.protocol", protocol, "session.timeout.ms", "6000", "heartbeat.interval.ms", "500");
    // What the consumer protocol lets the broker say, and what a release does not know.
    if (protocol.equals("consumer")) {
      more.remove("session.timeout.ms");
      more.remove("heartbeat.interval.ms");
    } else {
      more.remove("group.protocol");
    }
    Object[] pairs = more.entrySet().stream().flatMap(one -> Arrays.stream(new Object[] {one.getKey(), one.getValue()})).toArray();
    try (KafkaConsumer<String, String> consumer = consumer(pairs)) {
      consumer.subscribe(Collections.singleton(topic));
      while (true) {
        for (ConsumerRecord<String, String> record : consumer.poll(BRIEFLY)) {
          System.out.println(record.value());
          if (survives || record.value().startsWith("kept")) {
            OffsetAndMetadata behind = new OffsetAndMetadata(record.offset() + 1);
            consumer.commitSync(Collections.singletonMap(new TopicPartition(topic, record.partition()), behind));
          }
        }
      }
    }
  }

  private static Process member(String kind, String topic, String protocol, File out) throws Exception {
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    List<String> command = Arrays.asList(java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
        "-cp", System.getProperty("java.class.path"), "Check", address, kind, topic, protocol);
    return new ProcessBuilder(command).redirectOutput(out).redirectError(ProcessBuilder.Redirect.DISCARD).start();
  }

  private static List<String> lines(File of, String name) throws Exception {
    return Files.readAllLines(of.toPath()).stream().filter(line -> line.startsWith(name)).collect(Collectors.toList());
  }

  /** Two members, of which one is killed that has read what it did not commit: the other one gets its partitions, and reads that. */
  private static void group(String protocol) throws Exception {
    String topic = own("group-" + protocol);
    int count = 600;
    create(topic, PARTITIONS);
    File victimOut = File.createTempFile("victim", null);
    File survivorOut = File.createTempFile("survivor", null);
    victimOut.deleteOnExit();
    survivorOut.deleteOnExit();
    Process victim = member("victim", topic, protocol, victimOut);
    Process survivor = member("survivor", topic, protocol, survivorOut);
    try (AdminClient admin = admin()) {
      Callable<Object> shares = () -> admin.describeConsumerGroups(Collections.singleton(topic)).all().get().get(topic).members().stream()
          .map(one -> one.assignment().topicPartitions().size()).sorted().collect(Collectors.toList());
      Callable<Object> asked = () -> {
        try {
          return shares.call();
        } catch (ExecutionException error) {
          return error.getCause();
        }
      };
      Callable<Object> committed = () -> admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().values().stream()
          .mapToLong(OffsetAndMetadata::offset).sum();
      until(asked, Arrays.asList(3, 3), "two members share the partitions");
      produce(topic, values("kept", count), PARTITIONS);
      until(committed, (long) count, "all of it is committed");
      produce(topic, values("lost", count), PARTITIONS);
      until(() -> lines(victimOut, "lost").isEmpty(), false, "who will be killed has read more");
      victim.destroyForcibly().waitFor();
      until(shares, Collections.singletonList(PARTITIONS), "the partitions of a member that died go to the other");
      produce(topic, values("after", count), PARTITIONS);
      until(committed, 3L * count, "everything is committed");
      survivor.destroyForcibly().waitFor();
      for (String name : new String[] {"lost", "after"}) {
        expect(new HashSet<>(lines(survivorOut, name)).equals(new HashSet<>(values(name, count))), true, "the other one has read all of " + name);
      }
      expect(sorted(lines(victimOut, "kept"), lines(survivorOut, "kept")).equals(sorted(values("kept", count))), true, "what was committed is read once");
      if (protocol.equals("classic")) {
        until(shares, Collections.emptyList(), "nobody is left");
        admin.deleteConsumerGroups(Collections.singleton(topic)).all().get();
      }
    } finally {
      victim.destroyForcibly();
      survivor.destroyForcibly();
    }
  }

  /** By the group's metadata or, before 2.5, by its name. */
  private static void sendOffsets(
      KafkaProducer<String, String> producer, Map<TopicPartition, OffsetAndMetadata> offsets, KafkaConsumer<String, String> consumer, String group)
      throws Exception {
    try {
      Object metadata = call(consumer, "groupMetadata");
      for (Method method : producer.getClass().getMethods()) {
        if (method.getName().equals("sendOffsetsToTransaction") && method.getParameterTypes()[1] != String.class) {
          method.invoke(producer, offsets, metadata);
          return;
        }
      }
    } catch (AssertionError older) {
      producer.getClass().getMethod("sendOffsetsToTransaction", Map.class, String.class).invoke(producer, offsets, group);
    }
  }

  private static void transactions() throws Exception {
    String topic = own("txn");
    TopicPartition source = new TopicPartition(own("seek"), 0);
    create(topic, 3);
    try (KafkaProducer<String, String> producer = producer("transactional.id", topic);
        KafkaConsumer<String, String> consumer = consumer("group.id", topic, "session.timeout.ms", "6000")) {
      producer.initTransactions();
      consumer.subscribe(Collections.singleton(source.topic()));
      following(consumer);
      for (Object[] of : new Object[][] {{"a", true, 40L, 40L}, {"b", false, 60L, 40L}, {"c", true, 100L, 100L}}) {
        producer.beginTransaction();
        send(producer, topic, values((String) of[0], 300), 3);
        sendOffsets(producer, Collections.singletonMap(source, new OffsetAndMetadata((long) of[2])), consumer, topic);
        if ((boolean) of[1]) {
          producer.commitTransaction();
        } else {
          producer.abortTransaction();
        }
        expect(consumer.committed(Collections.singleton(source)).get(source).offset(), of[3], "committed after " + of[0]);
      }
      List<String> committed = sorted(values("a", 300), values("c", 300));
      expect(read(topic, 3, "read_committed").equals(committed), true, "what was committed is read");
      expect(read(topic, 3, "read_uncommitted").size(), 900, "records that others read");
      producer.beginTransaction();
      send(producer, topic, values("open", 3), 3);
      expect(read(topic, 3, "read_committed").equals(committed), true, "an open transaction is not read");
      try (KafkaProducer<String, String> another = producer("transactional.id", topic)) {
        another.initTransactions();
        try {
          producer.commitTransaction();
          throw new AssertionError("a fenced producer commits");
        } catch (ProducerFencedException fenced) {
          // As it should be.
        }
        another.beginTransaction();
        send(another, topic, values("d", 3), 3);
        another.commitTransaction();
      }
      expect(read(topic, 3, "read_committed").equals(sorted(committed, values("d", 3))), true, "what the other one has committed is read");
    }
  }

  private static String why(Throwable error) {
    Throwable cause = error instanceof InvocationTargetException || error instanceof ExecutionException ? error.getCause() : error;
    return "fails: " + cause.toString().replaceAll("\\s+", " ");
  }

  public static void main(String[] words) throws Exception {
    address = words[0];
    if (words.length > 3) {
      beMember(words[2], words[3], words[1].equals("survivor"));
    }
    Map<String, Step> checks = new LinkedHashMap<>();
    checks.put("topics: create, partitions, list, describe and alter configurations, delete records, delete", Check::topics);
    for (String kind : new String[] {"none", "gzip", "snappy", "lz4", "zstd"}) {
      checks.put("produce and consume, compression " + kind + ", idempotent, acks all and 1", () -> compressed(kind));
    }
    checks.put("seek: to an offset, to begin and end, by time", Check::seeks);
    checks.put("group, classic protocol: members join, one is killed, the other goes on", () -> group("classic"));
    if (!RELEASE.startsWith("2.")) {
      checks.put("group, consumer protocol (KIP-848): the same", () -> group("consumer"));
    }
    checks.put("transactions: commit, abort, offsets of a group, read_committed, fencing", Check::transactions);
    for (Map.Entry<String, Step> check : checks.entrySet()) {
      String result = "works";
      try {
        check.getValue().run();
      } catch (Throwable error) {
        result = why(error);
      }
      System.out.println("kafka-clients " + RELEASE + "\t" + check.getKey() + "\t" + result);
    }
    System.exit(0);
  }
}
