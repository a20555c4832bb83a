// Loads NATS JetStream and prints one JSON object with the fields of `kera bench`.
//
// A partition is a stream of its own, because a JetStream stream is one log whatever its subjects. Producers publish
// asynchronously, as many messages for one stream as a chunk holds, then the next stream's turn, with a bounded number under way.
// Consumers are ordered consumers on the streams that are their share.
//
// At a rate every message has a time at which it is due and counts from then, however late it could be sent.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Messages of a producer that may be under way at most.
const pendingMax = 4000

// Latencies that are kept for each side: enough for percentiles.
const samplesMax = 1 << 20

type load struct {
	what                    string
	address                 string
	partitions, recordBytes int
	chunkRecords, inFlight  int
	requestRecords          int
	producers, consumers    int
	seconds, warmup, rate   float64
	keptBytes               int64
	measuring, stopped      atomic.Bool
	failed                  atomic.Pointer[string]
}

// What one side has done within the measured stretch.
type side struct {
	records atomic.Uint64
	mutex   sync.Mutex
	micros  []float64
	seen    int
}

func (s *side) add(l *load, records uint64, stampNs int64) {
	if !l.measuring.Load() {
		return
	}
	s.records.Add(records)
	if stampNs == 0 {
		return
	}
	took := float64(nowNs()-stampNs) / 1e3
	s.mutex.Lock()
	if len(s.micros) < samplesMax {
		s.micros = append(s.micros, took)
	} else {
		s.micros[s.seen%samplesMax] = took
	}
	s.seen++
	s.mutex.Unlock()
}

func (s *side) report(l *load) map[string]any {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	sort.Float64s(s.micros)
	at := func(share float64) float64 {
		if len(s.micros) == 0 {
			return 0
		}
		return s.micros[min(int(share*float64(len(s.micros))), len(s.micros)-1)]
	}
	records := float64(s.records.Load())
	rate := records / l.seconds
	return map[string]any{
		"records": records, "bytes": records * float64(l.recordBytes), "seconds": l.seconds, "records_per_s": rate,
		"mib_per_s": rate * float64(l.recordBytes) / (1 << 20), "errors": 0,
		"latency_us": map[string]any{
			"samples": len(s.micros), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1),
		},
	}
}

var start = time.Now()

// Times are only compared within this process.
func nowNs() int64 { return int64(time.Since(start)) + 1 }

func name(partition int) string { return fmt.Sprintf("bench-%d", partition) }

func (l *load) fail(err error) {
	text := err.Error()
	l.failed.CompareAndSwap(nil, &text)
	l.stopped.Store(true)
}

func (l *load) produce(number int, produced *side) error {
	conn, err := nats.Connect("nats://" + l.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	pending := min(pendingMax, max(l.requestRecords*l.inFlight, 256))
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(pending),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { l.fail(err) }))
	if err != nil {
		return err
	}
	// Acknowledgements are waited for by one goroutine, in the order of sending.
	type sent struct {
		future  jetstream.PubAckFuture
		stampNs int64
	}
	acks := make(chan sent, pending)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for one := range acks {
			select {
			case <-one.future.Ok():
				produced.add(l, 1, one.stampNs)
			case err := <-one.future.Err():
				l.fail(err)
			}
		}
	}()
	publish := func(partition int, stampNs int64, sampled bool) error {
		value := make([]byte, l.recordBytes)
		binary.LittleEndian.PutUint64(value, uint64(stampNs))
		// A server that syncs everything makes a publisher wait for longer than the client's usual 200 ms.
		future, err := js.PublishAsync(name(partition%l.partitions), value, jetstream.WithStallWait(30*time.Second))
		if err != nil {
			return err
		}
		if !sampled {
			stampNs = 0
		}
		acks <- sent{future, stampNs}
		return nil
	}
	partition := number * l.partitions / l.producers
	began, interval := nowNs(), 0.0
	if l.rate > 0 {
		interval = 1e9 * float64(l.producers) / l.rate
	}
	for n := 0; !l.stopped.Load(); n++ {
		if l.rate > 0 {
			due := began + int64(float64(n)*interval)
			if wait := due - nowNs(); wait > 0 {
				time.Sleep(time.Duration(wait))
			}
			err = publish(partition, due, true)
			partition++
		} else {
			for i := 0; i < l.chunkRecords && err == nil; i++ {
				err = publish(partition, nowNs(), i == 0)
			}
			partition++
		}
		if err != nil {
			break
		}
	}
	close(acks)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		err = fmt.Errorf("acknowledgements did not come")
	}
	return err
}

func (l *load) consume(ctx context.Context, js jetstream.JetStream, number int, consumed *side) ([]jetstream.ConsumeContext, error) {
	var running []jetstream.ConsumeContext
	for partition := number; partition < l.partitions; partition += l.consumers {
		consumer, err := js.OrderedConsumer(ctx, name(partition), jetstream.OrderedConsumerConfig{})
		if err != nil {
			return running, err
		}
		counter := 0
		one, err := consumer.Consume(func(message jetstream.Msg) {
			counter++
			stamp := int64(0)
			// A sample is enough at full speed.
			if l.rate > 0 || counter%128 == 0 {
				stamp = int64(binary.LittleEndian.Uint64(message.Data()))
			}
			consumed.add(l, 1, stamp)
		})
		if err != nil {
			return running, err
		}
		running = append(running, one)
	}
	return running, nil
}

func (l *load) run() error {
	conn, err := nats.Connect("nats://" + l.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	ctx := context.Background()
	defer func() {
		for partition := range l.partitions {
			_ = js.DeleteStream(ctx, name(partition))
		}
	}()
	for partition := range l.partitions {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name(partition), Subjects: []string{name(partition)}, Storage: jetstream.FileStorage, Replicas: 1,
			MaxBytes: l.keptBytes, Discard: jetstream.DiscardOld,
		})
		if err != nil {
			return err
		}
	}
	var produced, consumed side
	if l.what == "both" {
		for number := range l.consumers {
			reader, err := nats.Connect("nats://" + l.address)
			if err != nil {
				return err
			}
			defer reader.Close()
			readerJs, err := jetstream.New(reader)
			if err != nil {
				return err
			}
			running, err := l.consume(ctx, readerJs, number, &consumed)
			for _, one := range running {
				defer one.Stop()
			}
			if err != nil {
				return err
			}
		}
	}
	var group sync.WaitGroup
	for number := range l.producers {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := l.produce(number, &produced); err != nil {
				l.fail(err)
			}
		}()
	}
	l.wait(l.warmup)
	l.measuring.Store(true)
	l.wait(l.seconds)
	l.measuring.Store(false)
	l.stopped.Store(true)
	group.Wait()
	if failed := l.failed.Load(); failed != nil {
		return fmt.Errorf("%s", *failed)
	}
	report := produced.report(l)
	if l.what == "both" {
		report["consume"] = consumed.report(l)
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

func (l *load) wait(seconds float64) {
	end := time.Now().Add(time.Duration(seconds * 1e9))
	for time.Now().Before(end) && !l.stopped.Load() {
		time.Sleep(5 * time.Millisecond)
	}
}

func main() {
	l := &load{}
	flags := flag.NewFlagSet("nats-bench produce|both", flag.ExitOnError)
	flags.StringVar(&l.address, "address", "127.0.0.1:4222", "the server")
	flags.IntVar(&l.partitions, "partitions", 16, "streams")
	flags.IntVar(&l.recordBytes, "record-bytes", 100, "bytes of a message, at least 8")
	flags.IntVar(&l.chunkRecords, "chunk-records", 150, "messages for one stream before the next one's turn")
	flags.IntVar(&l.requestRecords, "request-records", 2400, "messages that count as one request")
	flags.IntVar(&l.inFlight, "in-flight", 5, "requests under way")
	flags.IntVar(&l.producers, "producers", 1, "producers, each with a connection")
	flags.IntVar(&l.consumers, "consumers", 1, "consumers, each with a connection")
	flags.Float64Var(&l.seconds, "seconds", 5, "seconds that are measured")
	flags.Float64Var(&l.warmup, "warmup-seconds", 1, "seconds before")
	flags.Float64Var(&l.rate, "rate", 0, "messages per second of all producers together; 0: as fast as it goes")
	flags.Int64Var(&l.keptBytes, "kept-bytes", 32<<20, "what each stream keeps")
	flags.Int("records", 0, "taken, and not used: runs end by time")
	flags.Int("server-pid", 0, "taken, and not used: whoever runs this looks at the server itself")
	if len(os.Args) < 2 || (os.Args[1] != "produce" && os.Args[1] != "both") {
		fmt.Fprintln(os.Stderr, "nats-bench: say produce or both first")
		flags.Usage()
		os.Exit(2)
	}
	l.what = os.Args[1]
	// ExitOnError: Parse does not come back with an error.
	_ = flags.Parse(os.Args[2:])
	l.recordBytes = max(l.recordBytes, 8)
	if err := l.run(); err != nil {
		fmt.Fprintln(os.Stderr, "nats-bench:", err)
		os.Exit(1)
	}
}
