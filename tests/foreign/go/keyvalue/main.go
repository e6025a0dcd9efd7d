// keyvalue makes calls of nats.go's key-value client, as a test requests them.
//
// Usage: keyvalue ADDRESS. Each line of the standard input is a call in JSON, each line of the
// output its result: {"found": ...} or {"error": "..."}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A call, with the arguments that its name needs.
type call struct {
	Call     string   `json:"call"`
	Bucket   string   `json:"bucket"`
	Key      string   `json:"key"`
	Value    string   `json:"value"`
	Revision uint64   `json:"revision"`
	Keys     []string `json:"keys"`
	Options  []string `json:"options"`
	Count    int      `json:"count"`
	Watcher  string   `json:"watcher"`
	History  uint8    `json:"history"`
	Replicas int      `json:"replicas"`
	TTL      int64    `json:"ttl_ms"`
	Marker   int64    `json:"marker_ttl_ms"`
	Size     int32    `json:"value_bytes_max"`
	Bytes    int64    `json:"max_bytes"`
}

type entry struct {
	Key       string `json:"key"`
	Value     string `json:"value"`
	Revision  uint64 `json:"revision"`
	Operation string `json:"operation"`
}

const patience = 10 * time.Second

func main() {
	connection, err := nats.Connect(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	client := &client{js, map[string]jetstream.KeyWatcher{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked call
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		ctx, done := context.WithTimeout(context.Background(), patience)
		found, err := client.run(ctx, asked)
		done()
		if err != nil {
			out.Encode(map[string]any{"error": err.Error(), "kind": kindOf(err)})
		} else {
			out.Encode(map[string]any{"found": found})
		}
	}
}

// The error as programs compare it with errors.Is.
func kindOf(err error) string {
	for name, each := range map[string]error{
		"ErrBucketNotFound": jetstream.ErrBucketNotFound,
		"ErrBucketExists":   jetstream.ErrBucketExists,
		"ErrKeyNotFound":    jetstream.ErrKeyNotFound,
		"ErrKeyExists":      jetstream.ErrKeyExists,
		"ErrNoKeysFound":    jetstream.ErrNoKeysFound,
		"ErrInvalidKey":     jetstream.ErrInvalidKey,
	} {
		if errors.Is(err, each) {
			return name
		}
	}
	return ""
}

type client struct {
	js       jetstream.JetStream
	watchers map[string]jetstream.KeyWatcher
}

func (c *client) run(ctx context.Context, asked call) (any, error) {
	config := jetstream.KeyValueConfig{
		Bucket:         asked.Bucket,
		History:        asked.History,
		Replicas:       asked.Replicas,
		TTL:            time.Duration(asked.TTL) * time.Millisecond,
		LimitMarkerTTL: time.Duration(asked.Marker) * time.Millisecond,
		MaxValueSize:   asked.Size,
		MaxBytes:       asked.Bytes,
	}
	switch asked.Call {
	case "create_bucket":
		return status(ctx)(c.js.CreateKeyValue(ctx, config))
	case "create_or_update_bucket":
		return status(ctx)(c.js.CreateOrUpdateKeyValue(ctx, config))
	case "update_bucket":
		return status(ctx)(c.js.UpdateKeyValue(ctx, config))
	case "delete_bucket":
		return nil, c.js.DeleteKeyValue(ctx, asked.Bucket)
	case "status":
		return status(ctx)(c.js.KeyValue(ctx, asked.Bucket))
	case "bucket_names":
		lister := c.js.KeyValueStoreNames(ctx)
		names := []string{}
		for name := range lister.Name() {
			names = append(names, name)
		}
		slices.Sort(names)
		return names, lister.Error()
	case "buckets":
		lister := c.js.KeyValueStores(ctx)
		names := []string{}
		for each := range lister.Status() {
			names = append(names, each.Bucket())
		}
		slices.Sort(names)
		return names, lister.Error()
	case "next":
		return c.next(ctx, asked)
	}
	bucket, err := c.js.KeyValue(ctx, asked.Bucket)
	if err != nil {
		return nil, err
	}
	return c.inBucket(ctx, bucket, asked)
}

func (c *client) inBucket(ctx context.Context, bucket jetstream.KeyValue, asked call) (any, error) {
	ttl := time.Duration(asked.TTL) * time.Millisecond
	var removal []jetstream.KVDeleteOpt
	if asked.Revision > 0 {
		removal = append(removal, jetstream.LastRevision(asked.Revision))
	}
	switch asked.Call {
	case "put":
		return bucket.Put(ctx, asked.Key, []byte(asked.Value))
	case "create":
		if ttl > 0 {
			return bucket.Create(ctx, asked.Key, []byte(asked.Value), jetstream.KeyTTL(ttl))
		}
		return bucket.Create(ctx, asked.Key, []byte(asked.Value))
	case "update":
		return bucket.Update(ctx, asked.Key, []byte(asked.Value), asked.Revision)
	case "get":
		return shown(bucket.Get(ctx, asked.Key))
	case "get_revision":
		return shown(bucket.GetRevision(ctx, asked.Key, asked.Revision))
	case "delete":
		return nil, bucket.Delete(ctx, asked.Key, removal...)
	case "purge":
		if ttl > 0 {
			removal = append(removal, jetstream.PurgeTTL(ttl))
		}
		return nil, bucket.Purge(ctx, asked.Key, removal...)
	case "purge_deletes":
		return nil, bucket.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(ttl))
	case "keys":
		return bucket.Keys(ctx)
	case "list_keys":
		lister, err := bucket.ListKeysFiltered(ctx, asked.Keys...)
		if err != nil {
			return nil, err
		}
		keys := []string{}
		for key := range lister.Keys() {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		return keys, nil
	case "history":
		history, err := bucket.History(ctx, asked.Key)
		if err != nil {
			return nil, err
		}
		found := []*entry{}
		for _, each := range history {
			found = append(found, plain(each))
		}
		return found, nil
	case "watch":
		return nil, c.watch(bucket, asked)
	}
	return nil, fmt.Errorf("no call %q", asked.Call)
}

func (c *client) watch(bucket jetstream.KeyValue, asked call) error {
	var options []jetstream.WatchOpt
	for _, name := range asked.Options {
		switch name {
		case "history":
			options = append(options, jetstream.IncludeHistory())
		case "updates_only":
			options = append(options, jetstream.UpdatesOnly())
		case "ignore_deletes":
			options = append(options, jetstream.IgnoreDeletes())
		case "meta_only":
			options = append(options, jetstream.MetaOnly())
		}
	}
	if asked.Revision > 0 {
		options = append(options, jetstream.ResumeFromRevision(asked.Revision))
	}
	watcher, err := bucket.WatchFiltered(context.Background(), asked.Keys, options...)
	if err == nil {
		c.watchers[asked.Watcher] = watcher
	}
	return err
}

// next returns `count` updates, the end of the initial values being a null; count 0: up to that.
func (c *client) next(ctx context.Context, asked call) (any, error) {
	watcher, ok := c.watchers[asked.Watcher]
	if !ok {
		return nil, fmt.Errorf("no watcher %q", asked.Watcher)
	}
	found := []*entry{}
	for asked.Count == 0 || len(found) < asked.Count {
		select {
		case each := <-watcher.Updates():
			if each == nil {
				found = append(found, nil)
				if asked.Count == 0 {
					return found, nil
				}
			} else {
				found = append(found, plain(each))
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("after %d updates: %w", len(found), ctx.Err())
		}
	}
	return found, nil
}

func plain(each jetstream.KeyValueEntry) *entry {
	return &entry{each.Key(), string(each.Value()), each.Revision(), each.Operation().String()}
}

func shown(found jetstream.KeyValueEntry, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return plain(found), nil
}

func status(ctx context.Context) func(jetstream.KeyValue, error) (any, error) {
	return func(bucket jetstream.KeyValue, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		found, err := bucket.Status(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"bucket":          found.Bucket(),
			"values":          found.Values(),
			"history":         found.History(),
			"ttl_ms":          found.TTL().Milliseconds(),
			"marker_ttl_ms":   found.LimitMarkerTTL().Milliseconds(),
			"value_bytes_max": found.Config().MaxValueSize,
		}, nil
	}
}
