// Command member is a member of a consumer group with franz-go: it prints what it owns and what it
// reads, as JSON lines.
//
//	SESSION_MS=6000 member franz-go ADDRESS GROUP TOPIC
//
// Lines: {"owned": [partition, ...]} after each assignment, {"at": [partition, offset]} for each
// record. SIGTERM: commit, leave and end.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func say(line map[string]any) {
	data, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(data))
}

func main() {
	address, group, topic := os.Args[2], os.Args[3], os.Args[4]
	sessionMs, err := strconv.Atoi(os.Getenv("SESSION_MS"))
	if err != nil {
		panic(err)
	}
	owned := map[int32]bool{}
	sayOwned := func() {
		partitions := []int{}
		for partition := range owned {
			partitions = append(partitions, int(partition))
		}
		sort.Ints(partitions)
		say(map[string]any{"owned": partitions})
	}
	drop := func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
		for _, partition := range gone[topic] {
			delete(owned, partition)
		}
		sayOwned()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(address, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(time.Duration(sessionMs)*time.Millisecond),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.AutoCommitInterval(500*time.Millisecond),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			for _, partition := range added[topic] {
				owned[partition] = true
			}
			sayOwned()
		}),
		kgo.OnPartitionsRevoked(drop),
		kgo.OnPartitionsLost(drop),
	)
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachError(func(_ string, partition int32, err error) {
			if ctx.Err() == nil {
				say(map[string]any{"error": fmt.Sprint(partition, err)})
			}
		})
		fetches.EachRecord(func(record *kgo.Record) {
			say(map[string]any{"at": []int64{int64(record.Partition), record.Offset}})
		})
		client.AllowRebalance()
	}
	if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
		say(map[string]any{"error": err.Error()})
	}
	client.CloseAllowingRebalance()
	say(map[string]any{"ended": true})
}
