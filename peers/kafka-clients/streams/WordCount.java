import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts words with Kafka Streams, exactly once, and checks the counts. wordcount.py runs it and kills it.
 *
 * <pre>
 * topics ADDRESS                 makes the topics; says whether a compacted one can be made
 * run ADDRESS STATE CLEANUP      counts until it is killed; CLEANUP is the cleanup.policy of its changelog
 * write ADDRESS LINES SEED MS    writes so many lines of ten words, with a pause after each hundred
 * left ADDRESS                   how many records compaction has left in the changelog, of how many offsets
 * check ADDRESS LINES SEED...    waits until all is counted, then compares; several pairs of LINES and SEED may be given
 * </pre>
 */
public final class WordCount {
  private static final String IN = "words-in";
  private static final String OUT = "words-out";
  private static final String CHANGELOG = "words-counts-changelog";
  private static final int PARTITIONS = 4;
  private static final int WORDS = 500;

  public static void main(String[] args) throws Exception {
    switch (args[0]) {
      case "topics" -> topics(args[1]);
      case "run" -> run(args[1], args[2], args[3]);
      case "write" -> write(args[1], Integer.parseInt(args[2]), Long.parseLong(args[3]), Long.parseLong(args[4]));
      case "left" -> left(args[1]);
      case "check" -> check(args[1], List.of(args).subList(2, args.length));
      default -> throw new IllegalArgumentException(args[0]);
    }
  }

  private static List<String> lines(int count, long seed) {
    Random random = new Random(seed);
    List<String> lines = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      StringBuilder line = new StringBuilder();
      for (int j = 0; j < 10; j++) {
        // Some words are far more frequent than others.
        line.append("word").append((int) (WORDS * Math.pow(random.nextDouble(), 3))).append(' ');
      }
      lines.add(line.toString().trim());
    }
    return lines;
  }

  private static void topics(String address) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
      NewTopic compacted = new NewTopic("words-compacted", 1, copies()).configs(Map.of("cleanup.policy", "compact"));
      try {
        admin.createTopics(List.of(compacted)).all().get();
        System.out.println("compact");
      } catch (ExecutionException refused) {
        System.out.println("delete (" + refused.getCause().getMessage() + ")");
      }
      List<NewTopic> topics = List.of(new NewTopic(IN, PARTITIONS, copies()), new NewTopic(OUT, PARTITIONS, copies()));
      admin.createTopics(topics).all().get();
    }
  }

  /** Copies of each topic. */
  private static short copies() {
    return Short.parseShort(System.getenv().getOrDefault("COPIES", "1"));
  }

  private static void run(String address, String state, String cleanup) throws Exception {
    Files.createDirectories(Path.of(state));
    Properties conf = new Properties();
    conf.put(StreamsConfig.APPLICATION_ID_CONFIG, "words");
    conf.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
    conf.put(StreamsConfig.STATE_DIR_CONFIG, state);
    conf.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    conf.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    conf.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    conf.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, (int) copies());
    // Without a cache every step of every count is written: a step that is missing or there twice is seen.
    conf.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    conf.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
    conf.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 1000);
    conf.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    conf.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10000);

    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(IN, Consumed.with(Serdes.String(), Serdes.String()))
        .flatMapValues(line -> List.of(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
        .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
            .withLoggingEnabled(changelog(cleanup)))
        .toStream()
        .to(OUT, Produced.with(Serdes.String(), Serdes.Long()));
    KafkaStreams streams = new KafkaStreams(builder.build(), conf);
    streams.setStateListener((now, before) -> System.out.println("state " + now));
    streams.setUncaughtExceptionHandler(error -> {
      System.out.println("error " + error + " " + error.getCause());
      return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
    });
    streams.setGlobalStateRestoreListener(new StateRestoreListener() {
      @Override
      public void onRestoreStart(TopicPartition of, String store, long from, long to) {}

      @Override
      public void onBatchRestored(TopicPartition of, String store, long to, long count) {}

      @Override
      public void onRestoreEnd(TopicPartition of, String store, long total) {
        System.out.println("restored " + of + " " + total);
      }
    });
    streams.start();
    Thread.currentThread().join();
  }

  /** Compacted as soon as there is something to compact: a run takes a minute, not a week. */
  private static Map<String, String> changelog(String cleanup) {
    return Map.of("cleanup.policy", cleanup, "min.cleanable.dirty.ratio", "0.01", "max.compaction.lag.ms", "1000");
  }

  private static void left(String address) throws Exception {
    Map<String, Object> conf = Map.of("bootstrap.servers", address, "isolation.level", "read_committed");
    var bytes = new org.apache.kafka.common.serialization.ByteArrayDeserializer();
    try (var consumer = new KafkaConsumer<>(new HashMap<>(conf), bytes, bytes)) {
      List<TopicPartition> all = new ArrayList<>();
      for (int i = 0; i < PARTITIONS; i++) {
        all.add(new TopicPartition(CHANGELOG, i));
      }
      consumer.assign(all);
      consumer.seekToBeginning(all);
      Map<TopicPartition, Long> ends = consumer.endOffsets(all);
      long found = 0;
      while (all.stream().anyMatch(of -> consumer.position(of) < ends.get(of))) {
        found += consumer.poll(Duration.ofMillis(500)).count();
      }
      System.out.println(found + " of " + ends.values().stream().mapToLong(Long::longValue).sum());
    }
  }

  private static void write(String address, int count, long seed, long pauseMs) throws Exception {
    Map<String, Object> conf = Map.of("bootstrap.servers", address, "enable.idempotence", true, "delivery.timeout.ms", 180000);
    List<Exception> failed = new ArrayList<>();
    try (var producer = new KafkaProducer<>(new HashMap<>(conf), new StringSerializer(), new StringSerializer())) {
      int number = 0;
      for (String line : lines(count, seed)) {
        producer.send(new ProducerRecord<>(IN, "line" + number, line), (done, error) -> {
          if (error != null) {
            failed.add(error);
          }
        });
        if (++number % 100 == 0) {
          Thread.sleep(pauseMs);
        }
      }
      producer.flush();
    }
    if (!failed.isEmpty()) {
      throw failed.get(0);
    }
  }

  private static void check(String address, List<String> pairs) throws Exception {
    Map<String, Long> wanted = new HashMap<>();
    for (int i = 0; i < pairs.size(); i += 2) {
      for (String line : lines(Integer.parseInt(pairs.get(i)), Long.parseLong(pairs.get(i + 1)))) {
        for (String word : line.split(" ")) {
          wanted.merge(word, 1L, Long::sum);
        }
      }
    }
    long steps = wanted.values().stream().mapToLong(Long::longValue).sum();
    Map<String, Object> conf = Map.of("bootstrap.servers", address, "isolation.level", "read_committed", "auto.offset.reset", "earliest");
    Map<String, Long> found = new HashMap<>();
    long seen = 0;
    long wrong = 0;
    try (var consumer = new KafkaConsumer<>(new HashMap<>(conf), new StringDeserializer(), new LongDeserializer())) {
      List<TopicPartition> all = new ArrayList<>();
      for (int i = 0; i < PARTITIONS; i++) {
        all.add(new TopicPartition(OUT, i));
      }
      consumer.assign(all);
      consumer.seekToBeginning(all);
      long quietUntil = System.currentTimeMillis() + 90_000;
      // Once everything is there, a moment more: what is there twice would follow.
      while (System.currentTimeMillis() < quietUntil) {
        for (ConsumerRecord<String, Long> step : consumer.poll(Duration.ofMillis(500))) {
          if (found.getOrDefault(step.key(), 0L) + 1 != step.value()) {
            wrong++;
          }
          found.put(step.key(), step.value());
          seen++;
          quietUntil = System.currentTimeMillis() + (seen < steps ? 90_000 : 5_000);
        }
      }
    }
    long differ = wanted.entrySet().stream().filter(entry -> !entry.getValue().equals(found.get(entry.getKey()))).count();
    System.out.printf("%d words, %d of them wrong; %d steps of %d, %d out of place%n", wanted.size(), differ, seen, steps, wrong);
    System.exit(differ == 0 && seen == steps && wrong == 0 && found.size() == wanted.size() ? 0 : 1);
  }
}
