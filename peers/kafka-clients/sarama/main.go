// What Sarama can do with a node: each check is a function, its outcome a line "client, what, result", parted by tabs.
//
// usage: sarama ADDRESS
//
// go.mod has a release of today, older.mod (-modfile=older.mod) the first one that commits in a way that Kafka 4 still has.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	partitions = 6
	patience   = 90 * time.Second
)

var (
	address = os.Args[1]
	// Which version of Kafka it is to take the node for; it is not asked by default.
	newest   = sarama.MaxVersion
	standard = sarama.NewConfig().Version
)

func config(version sarama.KafkaVersion) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = version
	c.Producer.Return.Successes = true
	// More at a time may change places when they are tried again.
	c.Net.MaxOpenRequests = 1
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.Group.Session.Timeout = 6 * time.Second
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	c.Consumer.MaxWaitTime = 100 * time.Millisecond
	return c
}

func idempotent(c *sarama.Config) {
	c.Producer.Idempotent = true
}

// own is the name of a topic, a group or a transactional id of this release.
func own(name string) string { return "sarama-" + release() + "-" + name }

func withAdmin(use func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin([]string{address}, config(newest))
	if err != nil {
		return err
	}
	defer admin.Close()
	return use(admin)
}

func create(topic string, parts int32) error {
	return withAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: parts, ReplicationFactor: 1}, false)
	})
}

func values(name string, count int) []string {
	all := make([]string, 0, count)
	for i := range count {
		all = append(all, fmt.Sprintf("%s %d", name, i))
	}
	return all
}

// produce writes "NAME 0" and so on, in turn to each partition, and checks that offsets go up one by one.
func produce(topic, name string, count int, parts int32, c *sarama.Config) error {
	producer, err := sarama.NewSyncProducer([]string{address}, c)
	if err != nil {
		return err
	}
	defer producer.Close()
	var all []*sarama.ProducerMessage
	for i, value := range values(name, count) {
		header := sarama.RecordHeader{Key: []byte("h"), Value: []byte("x")}
		all = append(all, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(i) % parts, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder(value),
			Headers: []sarama.RecordHeader{header},
		})
	}
	if err := producer.SendMessages(all); err != nil {
		var failed sarama.ProducerErrors
		if errors.As(err, &failed) {
			return fmt.Errorf("%d of %d are not written: %w", len(failed), count, failed[0].Err)
		}
		return err
	}
	next := make(map[int32]int64)
	for _, one := range all {
		if wanted, ok := next[one.Partition]; ok && one.Offset != wanted {
			return fmt.Errorf("partition %d: offset %d instead of %d", one.Partition, one.Offset, wanted)
		}
		next[one.Partition] = one.Offset + 1
	}
	return nil
}

// read reads all partitions from an offset on until there is as much as is wanted, and a moment longer: more would be wrong, too.
func read(topic string, parts int32, from int64, count int, c *sarama.Config) ([]string, error) {
	consumer, err := sarama.NewConsumer([]string{address}, c)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	all := make(chan *sarama.ConsumerMessage)
	done := make(chan struct{})
	defer close(done)
	for part := range parts {
		one, err := consumer.ConsumePartition(topic, part, from)
		if err != nil {
			return nil, err
		}
		go func() {
			for message := range one.Messages() {
				select {
				case all <- message:
				case <-done:
				}
			}
		}()
		defer one.AsyncClose()
	}
	var found []string
	for wait := patience; ; {
		select {
		case message := <-all:
			found = append(found, string(message.Value))
		case <-time.After(wait):
			return found, nil
		}
		if len(found) >= count {
			wait = 500 * time.Millisecond
		}
	}
}

func same(found, wanted []string) error {
	found, wanted = slices.Sorted(slices.Values(found)), slices.Sorted(slices.Values(wanted))
	if !slices.Equal(found, wanted) {
		return fmt.Errorf("%d records read instead of %d, or others", len(found), len(wanted))
	}
	return nil
}

func until(condition func() (bool, string), what string) error {
	said, is := "", false
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if is, said = condition(); is {
			return nil
		}
	}
	return fmt.Errorf("%s: not in %s (%s)", what, patience, said)
}

func admin() error {
	topic := own("admin")
	return withAdmin(func(admin sarama.ClusterAdmin) error {
		set := "50000"
		detail := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &set}}
		if err := errors.Join(admin.CreateTopic(topic, detail, false), admin.CreatePartitions(topic, 3, nil, false)); err != nil {
			return err
		}
		err := until(func() (bool, string) {
			listed, err := admin.ListTopics()
			return err == nil && listed[topic].NumPartitions == 3, fmt.Sprint(listed[topic].NumPartitions, err)
		}, "three partitions are listed")
		if err != nil {
			return err
		}
		described, err := admin.DescribeTopics([]string{topic})
		if err != nil || len(described[0].Partitions) != 3 {
			return fmt.Errorf("described: %v, %w", described, err)
		}
		setting := func(wanted string) error {
			entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
			at := slices.IndexFunc(entries, func(e sarama.ConfigEntry) bool { return e.Name == "retention.ms" })
			if err != nil || at < 0 || entries[at].Value != wanted {
				return fmt.Errorf("retention.ms is not %s, %w", wanted, err)
			}
			return nil
		}
		altered, again := "60000", "70000"
		change := map[string]sarama.IncrementalAlterConfigsEntry{
			"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &altered},
		}
		err = errors.Join(
			setting("50000"),
			admin.IncrementalAlterConfig(sarama.TopicResource, topic, change, false), setting(altered),
			admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &again}, false), setting(again),
			produce(topic, "v", 300, 3, config(newest)),
			admin.DeleteRecords(topic, map[int32]int64{0: 40}),
		)
		if err != nil {
			return err
		}
		client, err := sarama.NewClient([]string{address}, config(newest))
		if err != nil {
			return err
		}
		defer client.Close()
		if start, err := client.GetOffset(topic, 0, sarama.OffsetOldest); err != nil || start != 40 {
			return fmt.Errorf("the partition starts at %d, %w", start, err)
		}
		if err := admin.DeleteTopic(topic); err != nil {
			return err
		}
		return until(func() (bool, string) {
			listed, err := admin.ListTopics()
			_, is := listed[topic]
			return err == nil && !is, fmt.Sprint(err)
		}, "the topic is gone")
	})
}

func compressed(codec sarama.CompressionCodec) func() error {
	return func() error {
		topic := own(codec.String())
		if err := create(topic, 3); err != nil {
			return err
		}
		var wanted []string
		for name, set := range map[string]func(*sarama.Config){
			"all": func(*sarama.Config) {}, "idempotent": idempotent, "leader": func(c *sarama.Config) { c.Producer.RequiredAcks = sarama.WaitForLocal },
		} {
			c := config(newest)
			c.Producer.Compression = codec
			set(c)
			if err := produce(topic, name, 1500, 3, c); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			wanted = append(wanted, values(name, 1500)...)
		}
		found, err := read(topic, 3, sarama.OffsetOldest, len(wanted), config(newest))
		return errors.Join(err, same(found, wanted))
	}
}

func seeks() error {
	topic := own("seek")
	if err := errors.Join(create(topic, 1), produce(topic, "v", 1000, 1, config(newest))); err != nil {
		return err
	}
	client, err := sarama.NewClient([]string{address}, config(newest))
	if err != nil {
		return err
	}
	defer client.Close()
	all := values("v", 1000)
	for what, of := range map[string]struct{ asked, wanted int64 }{
		"begin": {sarama.OffsetOldest, 0}, "end": {sarama.OffsetNewest, 1000}, "an hour ago": {time.Now().Add(-time.Hour).UnixMilli(), 0},
	} {
		if found, err := client.GetOffset(topic, 0, of.asked); err != nil || found != of.wanted {
			return fmt.Errorf("%s is at %d, %w", what, found, err)
		}
	}
	for _, from := range []int64{600, 0, 999} {
		found, err := read(topic, 1, from, 1000-int(from), config(newest))
		if err := errors.Join(err, same(found, all[from:])); err != nil {
			return fmt.Errorf("from %d: %w", from, err)
		}
	}
	return nil
}

// A member of a group: it commits behind what is "kept" and, if it survives, behind all else too, when it has read what has come.
type member struct {
	survives bool
	// In older releases commits at the same time may overtake each other.
	commits *sync.Mutex
}

func (member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		fmt.Println(string(message.Value))
		if m.survives || strings.HasPrefix(string(message.Value), "kept") {
			session.MarkMessage(message, "")
		}
		if len(claim.Messages()) == 0 {
			m.commits.Lock()
			session.Commit()
			m.commits.Unlock()
		}
	}
	return nil
}

// beMember reads in a group until it is killed: a process of its own, so that it can die without a word.
func beMember(topic, version string, survives bool) {
	of, err := sarama.ParseKafkaVersion(version)
	if err != nil {
		panic(err)
	}
	group, err := sarama.NewConsumerGroup([]string{address}, topic, config(of))
	if err != nil {
		panic(err)
	}
	for {
		if err := group.Consume(context.Background(), []string{topic}, member{survives, new(sync.Mutex)}); err != nil {
			panic(err)
		}
	}
}

// group runs two members and kills one that has read what it did not commit: the other one gets its partitions, and reads that.
func group(topic string, version sarama.KafkaVersion) error {
	const count = 600
	if err := create(topic, partitions); err != nil {
		return err
	}
	outs := [2]*strings.Builder{{}, {}}
	var members [2]*exec.Cmd
	end := func(at int) {
		if members[at] != nil && members[at].ProcessState == nil {
			members[at].Process.Kill()
			members[at].Wait()
		}
	}
	defer end(0)
	defer end(1)
	for at, kind := range []string{"victim", "survivor"} {
		members[at] = exec.Command(os.Args[0], address, kind, topic, version.String())
		members[at].Stdout = outs[at]
		if err := members[at].Start(); err != nil {
			return err
		}
	}
	return withAdmin(func(admin sarama.ClusterAdmin) error {
		shares := func(wanted ...int) func() (bool, string) {
			return func() (bool, string) {
				groups, err := admin.DescribeConsumerGroups([]string{topic})
				if err != nil {
					return false, err.Error()
				}
				var counts []int
				for _, m := range groups[0].Members {
					if got, err := m.GetMemberAssignment(); err == nil && got != nil {
						counts = append(counts, len(got.Topics[topic]))
					}
				}
				return slices.Equal(counts, wanted), fmt.Sprint(counts)
			}
		}
		committed := func(wanted int64) func() (bool, string) {
			return func() (bool, string) {
				told, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0, 1, 2, 3, 4, 5}})
				if err != nil {
					return false, err.Error()
				}
				sum := int64(0)
				for _, block := range told.Blocks[topic] {
					sum += max(0, block.Offset)
				}
				return sum == wanted, fmt.Sprint(sum)
			}
		}
		steps := []func() error{
			func() error { return until(shares(3, 3), "two members share the partitions") },
			func() error { return produce(topic, "kept", count, partitions, config(version)) },
			func() error { return until(committed(count), "all of it is committed") },
			func() error { return produce(topic, "lost", count, partitions, config(version)) },
			func() error {
				// What it prints is read when it is dead: until then its output is another goroutine's.
				return until(func() (bool, string) { return ends(admin, topic, count/2) }, "the other one has read its own part")
			},
			func() error { end(0); return nil },
			func() error { return until(shares(partitions), "the partitions of a member that died go to the other") },
			func() error { return produce(topic, "after", count, partitions, config(version)) },
			func() error { return until(committed(3*count), "everything is committed") },
			func() error { end(1); return nil },
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		lines := func(at int) []string { return strings.Split(strings.TrimSpace(outs[at].String()), "\n") }
		of := func(name string, lines []string) []string {
			return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, name) })
		}
		for _, name := range []string{"lost", "after"} {
			found := slices.Sorted(slices.Values(of(name, lines(1))))
			if err := same(slices.Compact(found), values(name, count)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if err := same(of("kept", slices.Concat(lines(0), lines(1))), values("kept", count)); err != nil {
			return fmt.Errorf("kept: %w", err)
		}
		if err := until(shares(), "nobody is left"); err != nil {
			return err
		}
		return admin.DeleteConsumerGroup(topic)
	})
}

// ends tells whether somebody has committed so many records that were "lost".
func ends(admin sarama.ClusterAdmin, topic string, count int64) (bool, string) {
	told, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0, 1, 2, 3, 4, 5}})
	if err != nil {
		return false, err.Error()
	}
	sum := int64(0)
	for _, block := range told.Blocks[topic] {
		sum += max(0, block.Offset-100)
	}
	return sum == count, fmt.Sprint(sum)
}

func transactional(id string) (sarama.AsyncProducer, error) {
	c := config(newest)
	idempotent(c)
	c.Producer.Transaction.ID = id
	return sarama.NewAsyncProducer([]string{address}, c)
}

// send writes in a transaction and waits until all of it is written.
func send(producer sarama.AsyncProducer, topic, name string, count int) error {
	go func() {
		for i, value := range values(name, count) {
			producer.Input() <- &sarama.ProducerMessage{Topic: topic, Partition: int32(i) % 3, Value: sarama.StringEncoder(value)}
		}
	}()
	for range count {
		select {
		case <-producer.Successes():
		case failed := <-producer.Errors():
			return failed.Err
		case <-time.After(patience):
			return errors.New("a record is not written in time")
		}
	}
	return nil
}

func transactions() error {
	topic, source := own("txn"), own("seek")
	if err := create(topic, 3); err != nil {
		return err
	}
	producer, err := transactional(topic)
	if err != nil {
		return err
	}
	defer producer.AsyncClose()
	for _, of := range []struct {
		name           string
		commits        bool
		offset, wanted int64
	}{{"a", true, 40, 40}, {"b", false, 60, 40}, {"c", true, 100, 100}} {
		if err := errors.Join(producer.BeginTxn(), send(producer, topic, of.name, 300)); err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		offsets := map[string][]*sarama.PartitionOffsetMetadata{source: {{Partition: 0, Offset: of.offset}}}
		if err := producer.AddOffsetsToTxn(offsets, topic); err != nil {
			return fmt.Errorf("offsets of %s: %w", of.name, err)
		}
		ended := producer.AbortTxn
		if of.commits {
			ended = producer.CommitTxn
		}
		if err := ended(); err != nil {
			return fmt.Errorf("the end of %s: %w", of.name, err)
		}
		err := withAdmin(func(admin sarama.ClusterAdmin) error {
			return until(func() (bool, string) {
				told, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{source: {0}})
				if err != nil {
					return false, err.Error()
				}
				block := told.GetBlock(source, 0)
				return block != nil && block.Offset == of.wanted, fmt.Sprint(block)
			}, fmt.Sprintf("%d is committed", of.wanted))
		})
		if err != nil {
			return fmt.Errorf("after %s: %w", of.name, err)
		}
	}
	c := config(newest)
	found, err := read(topic, 3, sarama.OffsetOldest, 900, c)
	if err := errors.Join(err, same(found, slices.Concat(values("a", 300), values("b", 300), values("c", 300)))); err != nil {
		return fmt.Errorf("what others read: %w", err)
	}
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	found, err = read(topic, 3, sarama.OffsetOldest, 600, c)
	if err := errors.Join(err, same(found, slices.Concat(values("a", 300), values("c", 300)))); err != nil {
		return fmt.Errorf("what was committed: %w", err)
	}
	if err := errors.Join(producer.BeginTxn(), send(producer, topic, "fenced", 3)); err != nil {
		return err
	}
	// The open transaction is aborted first. A broker says so, and older releases leave it to the program to come again.
	another, err := transactional(topic)
	for limit := time.Now().Add(patience); errors.Is(err, sarama.ErrConcurrentTransactions) && time.Now().Before(limit); {
		another, err = transactional(topic)
	}
	if err != nil {
		return fmt.Errorf("while a transaction is open another producer is told: %w", err)
	}
	defer another.AsyncClose()
	fenced := producer.CommitTxn()
	if !errors.Is(fenced, sarama.ErrProducerFenced) && !errors.Is(fenced, sarama.ErrInvalidProducerEpoch) {
		return fmt.Errorf("a fenced producer is told: %w", fenced)
	}
	return errors.Join(another.BeginTxn(), send(another, topic, "d", 3), another.CommitTxn())
}

func withStandardVersion() error {
	topic := own("standard")
	if err := errors.Join(create(topic, 3), produce(topic, "v", 900, 3, config(standard))); err != nil {
		return err
	}
	found, err := read(topic, 3, sarama.OffsetOldest, 900, config(standard))
	return errors.Join(err, same(found, values("v", 900)), group(own("standard-group"), standard))
}

func release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/IBM/sarama" {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "?"
}

func main() {
	if len(os.Args) > 4 {
		beMember(os.Args[3], os.Args[4], os.Args[2] == "survivor")
	}
	type check struct {
		what string
		run  func() error
	}
	checks := []check{{"topics: create, partitions, list, describe and alter configurations, delete records, delete", admin}}
	for _, codec := range []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	} {
		checks = append(checks, check{fmt.Sprintf("produce and consume, compression %s, acks all, idempotent, acks 1", codec), compressed(codec)})
	}
	checks = append(checks,
		check{"seek: to an offset, begin, end, by time", seeks},
		check{"group, classic protocol: members join, one is killed, the other goes on", func() error { return group(own("group"), newest) }},
		check{"transactions: commit, abort, offsets of a group, read_committed, fencing", transactions},
		check{fmt.Sprintf("taking the node for Kafka %s, its default: produce, consume, a member of a group is killed", standard), withStandardVersion},
	)
	for _, check := range checks {
		result := "works"
		if err := check.run(); err != nil {
			result = "fails: " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Printf("Sarama %s\t%s\t%s\n", release(), check.what, result)
	}
}
