import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicLong;
import org.HdrHistogram.Histogram;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Loads a broker with Kafka's own Java clients: the flags of rdkafka-bench, and the same JSON object on standard output.
 *
 * <pre>
 * produce | consume | both | delete [--flag value ...]
 * </pre>
 *
 * One thread and one client for each producer and each consumer. Payloads are shared, and all of a topic's partitions have their turn:
 * each gets a batch before the next one's turn, or the client's own partitioner chooses (--spread library).
 */
final class Load {
  private static final Duration PATIENCE = Duration.ofSeconds(30);
  private static final long LONGEST_NS = 600_000_000_000L;
  /** A warm-up that was asked for in records ends earlier where they go slowly. */
  private static final double WARMUP_SECONDS_MOST = 3;

  private final Map<String, String> flags = new HashMap<>();
  private final Map<String, String> topicProperties = new HashMap<>();
  private final Map<String, String> producerProperties = new HashMap<>();
  /** Records that consumers wait for; known only when the producers' time is over. */
  private final AtomicLong wanted = new AtomicLong();
  private final AtomicLong received = new AtomicLong();
  /** Records of the warm-up. */
  private long warmed;
  /** Records that consumers get before they count. */
  private long notCounted;
  /** Whether the producers' warm-up is over, before which consumers do not count either. */
  private volatile boolean isWarm = true;

  private Load(String[] words) {
    for (int at = 1; at < words.length; at += words[at].equals("--keep") ? 1 : 2) {
      if (words[at].equals("--keep")) {
        flags.put("keep", "true");
      } else if (at + 1 == words.length) {
        throw new IllegalArgumentException(words[at] + " needs a value");
      } else if (words[at].equals("--topic-property")) {
        String[] pair = words[at + 1].split("=", 2);
        topicProperties.put(pair[0], pair[1]);
      } else if (words[at].equals("-X")) {
        String[] pair = words[at + 1].split("=", 2);
        producerProperties.put(pair[0], pair[1]);
      } else {
        flags.put(words[at].replaceFirst("^--", ""), words[at + 1]);
      }
    }
  }

  public static void main(String[] words) throws Exception {
    String what = words.length == 0 ? "" : words[0];
    Load load = new Load(words);
    switch (what) {
      case "delete" -> load.delete();
      case "produce" -> load.withTopics(() -> System.out.println(load.produce().json("")));
      case "both" -> load.withTopics(load::both);
      case "consume" -> {
        load.notCounted = load.number("warmup-records", 0);
        load.wanted.set(load.number("records", 1_000_000) + load.notCounted);
        System.out.println(load.consume().json(""));
      }
      default -> throw new IllegalArgumentException("produce, consume, both or delete, not `" + what + "`");
    }
  }

  private String text(String flag, String usual) {
    return flags.getOrDefault(flag, usual);
  }

  private int number(String flag, int usual) {
    return Integer.parseInt(text(flag, Integer.toString(usual)));
  }

  private double real(String flag, double usual) {
    return Double.parseDouble(text(flag, Double.toString(usual)));
  }

  private Properties properties() {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", text("bootstrap", "127.0.0.1:19092"));
    return properties;
  }

  private List<TopicPartition> partitions() {
    int topics = number("topics", 1);
    String name = text("topic", "bench");
    List<TopicPartition> all = new ArrayList<>();
    for (int partition = 0; partition < number("partitions", 16); partition++) {
      for (int topic = 0; topic < topics; topic++) {
        all.add(new TopicPartition(topics == 1 ? name : name + "-" + topic, partition));
      }
    }
    return all;
  }

  private List<String> topics() {
    return partitions().stream().map(TopicPartition::topic).distinct().toList();
  }

  private interface Work {
    void run() throws Exception;
  }

  private void withTopics(Work work) throws Exception {
    try (Admin admin = Admin.create(properties())) {
      var each = topics().stream().map(name -> new NewTopic(name, number("partitions", 16), (short) number("replication", 1)).configs(topicProperties));
      admin.createTopics(each.toList()).all().get();
    }
    try {
      work.run();
    } finally {
      if (!flags.containsKey("keep")) {
        delete();
      }
    }
  }

  private void delete() throws Exception {
    try (Admin admin = Admin.create(properties())) {
      admin.deleteTopics(topics()).all().get();
    } catch (ExecutionException error) {
      if (!(error.getCause() instanceof UnknownTopicOrPartitionException)) {
        throw error;
      }
    }
  }

  /** One side of a run. Times are of System.nanoTime. */
  private final class Side {
    final Histogram nanos = new Histogram(LONGEST_NS, 3);
    /** In the measured time. */
    long records;
    /** All that were acknowledged, also before and after it. */
    long acknowledged;
    long errors;
    long first = Long.MAX_VALUE;
    long last = Long.MIN_VALUE;
    /** CPU seconds of the server in the measured time. */
    double serverCpu;

    void add(Side other) {
      nanos.add(other.nanos);
      records += other.records;
      acknowledged += other.acknowledged;
      errors += other.errors;
      first = Math.min(first, other.first);
      last = Math.max(last, other.last);
      // All of them see the same server, at nearly the same time.
      serverCpu = Math.max(serverCpu, other.serverCpu);
    }

    void sampled(long ns) {
      nanos.recordValue(Math.min(Math.max(ns, 1), LONGEST_NS));
    }

    /** As rdkafka-bench prints it; `more` goes into the object. */
    String json(String more) {
      if (number("server-pid", 0) > 0) {
        more += String.format(Locale.ROOT, ",\"server\":{\"cpu_seconds\":%.2f,\"resident_bytes\":%d}", serverCpu, serverResidentBytes());
      }
      double seconds = Math.max((last - first) / 1e9, 1e-9);
      long bytes = records * number("record-bytes", 100);
      String latency = String.format(Locale.ROOT, "{\"samples\":%d,\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}",
          nanos.getTotalCount(), nanos.getValueAtPercentile(50) / 1e3, nanos.getValueAtPercentile(99) / 1e3,
          nanos.getValueAtPercentile(99.9) / 1e3, nanos.getMaxValue() / 1e3);
      return String.format(Locale.ROOT,
          "{\"records\":%d,\"bytes\":%d,\"seconds\":%.6f,\"records_per_s\":%.1f,\"mib_per_s\":%.3f,\"latency_us\":%s,\"errors\":%d%s}",
          records, bytes, seconds, records / seconds, bytes / seconds / (1 << 20), latency, errors, more);
    }
  }

  private interface One {
    Side run(int number) throws Exception;
  }

  /** A thread for each; what they count is added up. The first that fails is the outcome. */
  private Side all(String name, int count, One one) throws Exception {
    List<FutureTask<Side>> tasks = new ArrayList<>();
    for (int n = 0; n < count; n++) {
      int number = n;
      FutureTask<Side> task = new FutureTask<>(() -> one.run(number));
      tasks.add(task);
      Thread thread = new Thread(task, name + "-" + n);
      thread.setDaemon(true);
      thread.start();
    }
    Side sum = new Side();
    for (FutureTask<Side> task : tasks) {
      sum.add(task.get());
    }
    return sum;
  }

  private void both() throws Exception {
    isWarm = real("rate", 0) > 0;
    notCounted = isWarm ? number("warmup-records", 0) : 0;
    wanted.set(Long.MAX_VALUE);
    FutureTask<Side> consumer = new FutureTask<>(this::consume);
    Thread thread = new Thread(consumer, "consumers");
    thread.setDaemon(true);
    thread.start();
    Side produced = produce();
    wanted.set(produced.acknowledged + warmed);
    System.out.println(produced.json(",\"consume\":" + consumer.get().json("")));
  }

  private Side produce() throws Exception {
    long records = number("records", 1_000_000);
    long warmup = number("warmup-records", 0);
    double rate = real("rate", 0);
    if (rate > 0) {
      // The warm-up is the start of the run itself, at that rate.
      return produce(records + warmup, warmup, 0);
    }
    if (warmup > 0) {
      warmed = produce(warmup, 0, WARMUP_SECONDS_MOST).records;
    }
    isWarm = !isTimed();
    return produce(records, 0, real("seconds", 0));
  }

  /** Whether the clock starts and stops while producers send. */
  private boolean isTimed() {
    return real("warmup-seconds", 0) > 0 && real("seconds", 0) > 0 && real("rate", 0) == 0;
  }

  /** The measured time of a producer that sends on meanwhile. What is not acknowledged when it is over is given up, and counts nowhere. */
  private final class Clock extends Thread {
    private final KafkaProducer<byte[], byte[]> producer;
    private final AtomicLong acknowledged;
    private final Side side;
    volatile boolean isOn;
    volatile boolean isOver;

    Clock(KafkaProducer<byte[], byte[]> producer, AtomicLong acknowledged, Side side) {
      super("clock");
      this.producer = producer;
      this.acknowledged = acknowledged;
      this.side = side;
      setDaemon(true);
    }

    @Override
    public void run() {
      long now = System.nanoTime();
      long starts = now + (long) (real("warmup-seconds", 0) * 1e9);
      sleepUntil(starts);
      long before = acknowledged.get();
      double cpuBefore = serverCpuSeconds();
      side.first = System.nanoTime();
      isOn = true;
      isWarm = true;
      sleepUntil(starts + (long) (real("seconds", 0) * 1e9));
      side.records = acknowledged.get() - before;
      side.last = System.nanoTime();
      side.serverCpu = serverCpuSeconds() - cpuBefore;
      isOn = false;
      isOver = true;
      // Also wakes up a thread that waits for room.
      producer.close(Duration.ZERO);
    }
  }

  private Side produce(long records, long unmeasured, double seconds) throws Exception {
    int producers = number("producers", 1);
    CyclicBarrier ready = new CyclicBarrier(producers);
    return all("producer", producers, number -> produceOne(number, producers, ready, records, unmeasured, seconds));
  }

  private Side produceOne(int number, int producers, CyclicBarrier ready, long records, long unmeasured, double seconds)
      throws Exception {
    double rate = real("rate", 0);
    int recordBytes = number("record-bytes", 100);
    int batchBytes = number("batch-bytes", 16 << 10);
    Properties properties = properties();
    properties.put("acks", "1");
    properties.put("enable.idempotence", "false");
    properties.put("batch.size", Integer.toString(batchBytes));
    properties.put("linger.ms", Long.toString(Math.round(real("linger-ms", 1))));
    properties.put("buffer.memory", text("buffer-bytes", Integer.toString(32 << 20)));
    properties.put("max.request.size", Integer.toString(Math.max(1 << 20, 2 * batchBytes)));
    properties.putAll(producerProperties);
    List<TopicPartition> targets = partitions();
    boolean libraryChooses = text("spread", "batch").equals("library");
    int run = text("spread", "batch").equals("record") ? 1 : Math.max(1, batchBytes / (recordBytes + 8));
    byte[] plain = new byte[recordBytes];
    Arrays.fill(plain, 8, recordBytes, (byte) 'k');
    Side side = new Side();
    AtomicLong failed = new AtomicLong();
    AtomicLong acknowledged = new AtomicLong();
    long share = records / producers + (number < records % producers ? 1 : 0);
    long notCounted = unmeasured / producers + (number < unmeasured % producers ? 1 : 0);
    double intervalNs = rate > 0 ? 1e9 * producers / rate : 0;
    Clock clock = null;
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (TopicPartition target : targets) {
        if (target.partition() == 0) {
          producer.partitionsFor(target.topic());
        }
      }
      clock = isWarm || !isTimed() ? null : new Clock(producer, acknowledged, side);
      Clock timed = clock;
      Callback count = (metadata, error) -> {
        if (error == null) {
          acknowledged.incrementAndGet();
        } else if (timed == null || !timed.isOver) {
          failed.incrementAndGet();
        }
      };
      ready.await();
      double cpuBefore = serverCpuSeconds();
      long started = System.nanoTime();
      side.first = started;
      if (timed != null) {
        timed.start();
      }
      long at = 0;
      int left = run;
      for (long i = 0; i < share && (timed == null || !timed.isOver); i++) {
        long stamp = 0;
        if (intervalNs > 0) {
          // The time at which the record was due, not the one at which it could be sent: no coordinated omission.
          stamp = started + (long) (i * intervalNs);
          sleepUntil(stamp);
          stamp = i < notCounted ? 0 : stamp;
        } else if (i % 128 == 0) {
          stamp = System.nanoTime();
          if (timed == null && seconds > 0 && (stamp - started) / 1e9 >= seconds) {
            break;
          }
        }
        if (left == 0) {
          left = run;
          at++;
        }
        left--;
        TopicPartition target = targets.get((int) (at % targets.size()));
        Integer partition = libraryChooses ? null : target.partition();
        if (stamp == 0) {
          producer.send(new ProducerRecord<>(target.topic(), partition, null, plain), count);
        } else {
          byte[] stamped = plain.clone();
          put(stamped, stamp);
          long due = stamp;
          // Callbacks of one producer come one after the other, on its own thread.
          producer.send(new ProducerRecord<>(target.topic(), partition, null, stamped), (metadata, error) -> {
            count.onCompletion(metadata, error);
            if (timed == null || timed.isOn && error == null) {
              side.sampled(System.nanoTime() - due);
            }
          });
        }
      }
      if (timed == null) {
        producer.flush();
        side.last = System.nanoTime();
        side.serverCpu = serverCpuSeconds() - cpuBefore;
      }
    } catch (RuntimeException error) {
      // A producer that is closed refuses what its thread is sending.
      if (clock == null || !clock.isOver) {
        throw error;
      }
    }
    if (clock == null) {
      side.records = acknowledged.get();
    } else {
      clock.join();
    }
    side.acknowledged = acknowledged.get();
    side.errors = failed.get();
    return side;
  }

  private Side consume() throws Exception {
    int consumers = number("consumers", 1);
    return all("consumer", consumers, number -> consumeOne(number, consumers));
  }

  private Side consumeOne(int number, int consumers) {
    Properties properties = properties();
    properties.put("enable.auto.commit", "false");
    properties.put("auto.offset.reset", "earliest");
    properties.put("max.poll.records", "4096");
    properties.put("fetch.max.wait.ms", "100");
    Side side = new Side();
    List<TopicPartition> all = partitions();
    List<TopicPartition> mine = new ArrayList<>();
    for (int n = number; n < all.size(); n += consumers) {
      mine.add(all.get(n));
    }
    if (mine.isEmpty()) {
      return side;
    }
    try (KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      consumer.assign(mine);
      consumer.seekToBeginning(mine);
      long heard = System.nanoTime();
      double cpuBefore = serverCpuSeconds();
      while (received.get() < wanted.get()) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(20));
        long now = System.nanoTime();
        if (records.isEmpty()) {
          if (now - heard > PATIENCE.toNanos()) {
            throw new IllegalStateException(received + " of " + wanted + " records came, then nothing for " + PATIENCE);
          }
          continue;
        }
        heard = now;
        if (received.getAndAdd(records.count()) < notCounted || !isWarm) {
          cpuBefore = serverCpuSeconds();
          continue;
        }
        side.first = Math.min(side.first, now);
        side.last = now;
        for (ConsumerRecord<byte[], byte[]> record : records) {
          long stamp = get(record.value());
          if (stamp != 0) {
            side.sampled(now - stamp);
          }
        }
        side.records += records.count();
      }
      side.serverCpu = serverCpuSeconds() - cpuBefore;
    }
    return side;
  }

  /** CPU seconds that the server has used so far, if its process was given and can be looked at; otherwise 0. */
  private double serverCpuSeconds() {
    try {
      String stat = Files.readString(Path.of("/proc", text("server-pid", "0"), "stat"));
      // The program's name is in parentheses and may hold anything; utime and stime are the 12th and 13th behind it, in hundredths.
      String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
      return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
    } catch (IOException error) {
      return 0;
    }
  }

  /** What the server holds in memory, likewise. */
  private long serverResidentBytes() {
    try {
      for (String line : Files.readAllLines(Path.of("/proc", text("server-pid", "0"), "status"))) {
        if (line.startsWith("VmRSS:")) {
          return Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
        }
      }
    } catch (IOException error) {
      // There is no such process.
    }
    return 0;
  }

  private static void sleepUntil(long at) {
    while (true) {
      long left = at - System.nanoTime();
      if (left <= 0) {
        return;
      }
      java.util.concurrent.locks.LockSupport.parkNanos(left);
    }
  }

  private static void put(byte[] bytes, long value) {
    for (int n = 0; n < 8; n++) {
      bytes[n] = (byte) (value >>> (8 * n));
    }
  }

  private static long get(byte[] bytes) {
    long value = 0;
    for (int n = 7; n >= 0 && bytes.length >= 8; n--) {
      value = value << 8 | bytes[n] & 0xff;
    }
    return value;
  }
}
