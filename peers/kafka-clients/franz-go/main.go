// What franz-go can do with a node: each check is a function, its outcome a line "client, what, result", parted by tabs.
//
// usage: franz-go ADDRESS
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
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 6
	// A member of a group with the consumer protocol is missed after the node's 45 seconds.
	patience = 60 * time.Second
)

var address = os.Args[1]

func client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(address), kgo.RecordRetries(20)}, options...)...)
}

func create(ctx context.Context, topic string, partitions int32) error {
	cl, err := client()
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, partitions, 1, nil, topic)
	return err
}

// produce writes "NAME 0" and so on, in turn to each partition, and checks that offsets go up one by one.
func produce(ctx context.Context, topic, name string, count int, parts int32, options ...kgo.Opt) error {
	cl, err := client(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	results := cl.ProduceSync(ctx, records(topic, name, count, parts)...)
	if err := results.FirstErr(); err != nil {
		return err
	}
	next := make(map[int32]int64)
	for _, result := range results {
		r := result.Record
		if wanted, ok := next[r.Partition]; ok && r.Offset != wanted {
			return fmt.Errorf("partition %d: offset %d instead of %d", r.Partition, r.Offset, wanted)
		}
		next[r.Partition] = r.Offset + 1
	}
	return nil
}

func records(topic, name string, count int, parts int32) []*kgo.Record {
	all := make([]*kgo.Record, 0, count)
	for i := range count {
		all = append(all, &kgo.Record{
			Topic: topic, Partition: int32(i) % parts, Key: fmt.Appendf(nil, "k%d", i), Value: fmt.Appendf(nil, "%s %d", name, i),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}},
		})
	}
	return all
}

func values(name string, count int) []string {
	all := make([]string, 0, count)
	for i := range count {
		all = append(all, fmt.Sprintf("%s %d", name, i))
	}
	return all
}

// read polls until it has as many records as are wanted, and a moment longer: more would be wrong, too.
func read(ctx context.Context, count int, options ...kgo.Opt) ([]string, error) {
	cl, err := client(options...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var found []string
	until := time.Now().Add(patience)
	for time.Now().Before(until) {
		wait, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := cl.PollFetches(wait)
		cancel()
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return nil, failed.Err
			}
		}
		before := len(found)
		fetches.EachRecord(func(r *kgo.Record) { found = append(found, string(r.Value)) })
		if len(found) >= count && len(found) == before {
			break
		}
	}
	return found, nil
}

func same(found, wanted []string) error {
	slices.Sort(found)
	slices.Sort(wanted)
	if !slices.Equal(found, wanted) {
		return fmt.Errorf("%d records read instead of %d, or others", len(found), len(wanted))
	}
	return nil
}

func admin(ctx context.Context) error {
	cl, err := client()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(ctx, 3, 1, nil, "go-admin"); err != nil {
		return err
	}
	listed, err := adm.ListTopics(ctx, "go-admin")
	if err != nil || len(listed["go-admin"].Partitions) != 3 {
		return fmt.Errorf("partitions: %d, %w", len(listed["go-admin"].Partitions), err)
	}
	set := "60000"
	alter := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &set}}
	altered, err := adm.AlterTopicConfigs(ctx, alter, "go-admin")
	if err != nil || altered[0].Err != nil {
		return fmt.Errorf("alter: %w", errors.Join(err, altered[0].Err))
	}
	described, err := adm.DescribeTopicConfigs(ctx, "go-admin")
	if err != nil {
		return err
	}
	at := slices.IndexFunc(described[0].Configs, func(c kadm.Config) bool { return c.Key == "retention.ms" })
	if at < 0 || described[0].Configs[at].MaybeValue() != set {
		return errors.New("retention.ms is not what was set")
	}
	if err := produce(ctx, "go-admin", "v", 300, 3); err != nil {
		return err
	}
	deleted, err := adm.DeleteRecords(ctx, kadm.Offsets{"go-admin": {0: {Topic: "go-admin", Partition: 0, At: 40}}})
	if err != nil || deleted.Error() != nil {
		return fmt.Errorf("delete records: %w", errors.Join(err, deleted.Error()))
	}
	starts, err := adm.ListStartOffsets(ctx, "go-admin")
	if at, _ := starts.Lookup("go-admin", 0); err != nil || at.Offset != 40 {
		return fmt.Errorf("the partition starts at %d, %w", at.Offset, err)
	}
	gone, err := adm.DeleteTopics(ctx, "go-admin")
	if err != nil || gone.Error() != nil {
		return fmt.Errorf("delete: %w", errors.Join(err, gone.Error()))
	}
	// The client remembers topics for a while.
	isGone := func() bool {
		listed, err := adm.ListTopics(ctx, "go-admin")
		return err == nil && len(listed["go-admin"].Partitions) == 0
	}
	return until(isGone, "it is gone")
}

func compression(kind string, codec kgo.CompressionCodec) func(context.Context) error {
	return func(ctx context.Context) error {
		topic := "go-" + kind
		if err := create(ctx, topic, 3); err != nil {
			return err
		}
		codec := kgo.ProducerBatchCompression(codec)
		if err := produce(ctx, topic, "idempotent", 3000, 3, codec); err != nil {
			return err
		}
		if err := produce(ctx, topic, "leader", 300, 3, codec, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())); err != nil {
			return err
		}
		wanted := append(values("idempotent", 3000), values("leader", 300)...)
		found, err := read(ctx, len(wanted), kgo.ConsumeTopics(topic))
		if err != nil {
			return err
		}
		return same(found, wanted)
	}
}

func seeks(ctx context.Context) error {
	if err := errors.Join(create(ctx, "go-seek", 1), produce(ctx, "go-seek", "v", 1000, 1)); err != nil {
		return err
	}
	from := func(offset kgo.Offset) kgo.Opt {
		return kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"go-seek": {0: offset}})
	}
	all := values("v", 1000)
	for what, offset := range map[string]kgo.Offset{
		"at 600":      kgo.NewOffset().At(600),
		"400 to end":  kgo.NewOffset().AtEnd().Relative(-400),
		"an hour ago": kgo.NewOffset().AfterMilli(time.Now().Add(-time.Hour).UnixMilli()),
	} {
		wanted := all[600:]
		if what == "an hour ago" {
			wanted = all
		}
		found, err := read(ctx, len(wanted), from(offset))
		if err == nil {
			err = same(found, slices.Clone(wanted))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

func groupOptions(protocol, topic string) []kgo.Opt {
	options := []kgo.Opt{
		kgo.ConsumeTopics(topic), kgo.ConsumerGroup(topic), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.AutoCommitInterval(200 * time.Millisecond), kgo.AutoCommitMarks(),
	}
	if protocol == "consumer" {
		ctx := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true) //nolint:staticcheck // its name for it
		options = append(options, kgo.WithContext(ctx))
	}
	return options
}

// member reads in a group until it is killed: a process of its own, so that it can die without a word.
func member(protocol, topic string) {
	cl, err := client(groupOptions(protocol, topic)...)
	if err != nil {
		panic(err)
	}
	for {
		fetches := cl.PollFetches(context.Background())
		fetches.EachRecord(func(r *kgo.Record) {
			fmt.Println(string(r.Value))
			cl.MarkCommitRecords(r)
		})
	}
}

// group runs two members, kills one, and checks that the other gets its partitions and that everything was read.
func group(protocol string) func(context.Context) error {
	return func(ctx context.Context) error {
		topic := "go-group-" + protocol
		if err := errors.Join(create(ctx, topic, partitions), produce(ctx, topic, "before", 600, partitions)); err != nil {
			return err
		}
		cl, err := client()
		if err != nil {
			return err
		}
		defer cl.Close()
		adm := kadm.NewClient(cl)
		start := func() (*exec.Cmd, *strings.Builder, error) {
			child, out := exec.Command(os.Args[0], address, "member", protocol, topic), new(strings.Builder)
			child.Stdout = out
			return child, out, child.Start()
		}
		first, firstOut, err := start()
		if err != nil {
			return err
		}
		second, secondOut, err := start()
		if err != nil {
			return err
		}
		end := func(child *exec.Cmd) {
			if child.ProcessState == nil {
				child.Process.Kill()
				child.Wait()
			}
		}
		defer end(first)
		defer end(second)
		shared := func(members int) func() bool {
			return func() bool { return assigned(ctx, adm, protocol, topic, members) }
		}
		if err := until(shared(2), "two members share the partitions"); err != nil {
			return err
		}
		end(first)
		if err := until(shared(1), "the partitions of a member that died go to the other"); err != nil {
			return err
		}
		if err := produce(ctx, topic, "after", 600, partitions); err != nil {
			return err
		}
		done := func() bool {
			committed, err := adm.FetchOffsets(ctx, topic)
			sum := int64(0)
			committed.Each(func(o kadm.OffsetResponse) { sum += o.At })
			return err == nil && sum == 1200
		}
		if err := until(done, "everything is committed"); err != nil {
			return err
		}
		end(second)
		found := strings.Split(strings.TrimSpace(firstOut.String()+secondOut.String()), "\n")
		slices.Sort(found)
		return same(slices.Compact(found), append(values("before", 600), values("after", 600)...))
	}
}

// assigned tells whether the group has so many members, which together have all partitions.
func assigned(ctx context.Context, adm *kadm.Client, protocol, name string, members int) bool {
	counts := []int{}
	if protocol == "consumer" {
		groups, err := adm.DescribeConsumerGroups(ctx, name)
		if err != nil {
			return false
		}
		for _, m := range groups[name].Members {
			counts = append(counts, len(m.Assignment[name]))
		}
	} else {
		groups, err := adm.DescribeGroups(ctx, name)
		if err != nil {
			return false
		}
		for _, m := range groups[name].Members {
			got, _ := m.Assigned.AsConsumer()
			if got == nil || len(got.Topics) == 0 {
				return false
			}
			counts = append(counts, len(got.Topics[0].Partitions))
		}
	}
	sum := 0
	for _, count := range counts {
		sum += count
	}
	return len(counts) == members && sum == partitions && !slices.Contains(counts, 0)
}

func until(condition func() bool, what string) error {
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if condition() {
			return nil
		}
	}
	return fmt.Errorf("%s: not in %s", what, patience)
}

func transactions(ctx context.Context) error {
	err := errors.Join(create(ctx, "go-txn-in", 1), create(ctx, "go-txn", 3), produce(ctx, "go-txn-in", "in", 300, 1))
	if err != nil {
		return err
	}
	session := func() (*kgo.GroupTransactSession, error) {
		return kgo.NewGroupTransactSession(
			kgo.SeedBrokers(address), kgo.TransactionalID("go"), kgo.ConsumerGroup("go-txn"), kgo.ConsumeTopics("go-txn-in"),
			kgo.RequireStableFetchOffsets(), kgo.FetchMaxBytes(2000), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
	}
	s, err := session()
	if err != nil {
		return err
	}
	// Each record is passed on once, although every other transaction is aborted.
	for done, turn := 0, 0; done < 300; turn++ {
		wait, cancel := context.WithTimeout(ctx, patience)
		fetches := s.PollRecords(wait, 40)
		cancel()
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := s.Begin(); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			out := &kgo.Record{Topic: "go-txn", Partition: int32(r.Offset) % 3, Value: []byte(strings.Replace(string(r.Value), "in", "out", 1))}
			s.Produce(ctx, out, nil)
		}
		// What is still in the client when a transaction is aborted is never sent.
		if err := s.Client().Flush(ctx); err != nil {
			return err
		}
		ended, err := s.End(ctx, kgo.TransactionEndTry(turn%2 == 0))
		if err != nil {
			return err
		}
		if ended {
			done += fetches.NumRecords()
		}
	}
	defer s.Close()
	committed := []kgo.Opt{kgo.ConsumeTopics("go-txn"), kgo.FetchIsolationLevel(kgo.ReadCommitted())}
	found, err := read(ctx, 300, committed...)
	if err == nil {
		err = same(found, values("out", 300))
	}
	if err != nil {
		return err
	}
	all, err := read(ctx, 301, kgo.ConsumeTopics("go-txn"))
	if err != nil || len(all) <= 300 {
		return fmt.Errorf("what was aborted is not read by others: %d records, %w", len(all), err)
	}
	return fencing(ctx)
}

func fencing(ctx context.Context) error {
	cl, err := client(kgo.TransactionalID("go-fenced"), kgo.DefaultProduceTopic("go-txn"))
	if err != nil {
		return err
	}
	defer cl.Close()
	another, err := client(kgo.TransactionalID("go-fenced"), kgo.DefaultProduceTopic("go-txn"))
	if err != nil {
		return err
	}
	defer another.Close()
	for _, one := range []*kgo.Client{cl, another} {
		if err := one.BeginTransaction(); err != nil {
			return err
		}
		if err := one.ProduceSync(ctx, kgo.StringRecord("fenced")).FirstErr(); err != nil {
			return err
		}
	}
	fenced := errors.Join(cl.ProduceSync(ctx, kgo.StringRecord("fenced")).FirstErr(), cl.EndTransaction(ctx, kgo.TryCommit))
	if !errors.Is(fenced, kerr.InvalidProducerEpoch) && !errors.Is(fenced, kerr.ProducerFenced) {
		return fmt.Errorf("a fenced producer is told: %w", fenced)
	}
	return another.EndTransaction(ctx, kgo.TryAbort)
}

func release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/twmb/franz-go" {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "?"
}

func main() {
	if len(os.Args) > 4 && os.Args[2] == "member" {
		member(os.Args[3], os.Args[4])
	}
	checks := []struct {
		what string
		run  func(context.Context) error
	}{
		{"topics: create, list, describe and alter configurations, delete records, delete", admin},
		{"produce and consume, compression none, idempotent and acks 1", compression("none", kgo.NoCompression())},
		{"produce and consume, compression gzip, idempotent and acks 1", compression("gzip", kgo.GzipCompression())},
		{"produce and consume, compression snappy, idempotent and acks 1", compression("snappy", kgo.SnappyCompression())},
		{"produce and consume, compression lz4, idempotent and acks 1", compression("lz4", kgo.Lz4Compression())},
		{"produce and consume, compression zstd, idempotent and acks 1", compression("zstd", kgo.ZstdCompression())},
		{"seek: to an offset, from the end, by time", seeks},
		{"group, classic protocol: members join, one is killed, the other goes on", group("classic")},
		{"group, consumer protocol (KIP-848): the same", group("consumer")},
		{"transactions: read, write and commit offsets, half of them aborted, read_committed, fencing", transactions},
	}
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		result := "works"
		if err := check.run(ctx); err != nil {
			result = "fails: " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		cancel()
		fmt.Printf("franz-go %s\t%s\t%s\n", release(), check.what, result)
	}
}
