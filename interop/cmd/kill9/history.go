package main

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"dolmen.invalid/interop/internal/cluster"
)

// history is what servers promised.
type history struct {
	mu        sync.Mutex
	revisions map[string]int64
	doubtful  int
	faults    []string
	// times of acknowledgements, ascending.
	times []time.Time
}

func newHistory() *history { return &history{revisions: map[string]int64{}} }

func (h *history) acknowledged(keys []string, revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		h.revisions[key] = revision
	}
	h.times = append(h.times, time.Now())
}

func (h *history) unknown() {
	h.mu.Lock()
	h.doubtful++
	h.mu.Unlock()
}

func (h *history) fault(text string) {
	h.mu.Lock()
	h.faults = append(h.faults, text)
	h.mu.Unlock()
}

func (h *history) counts() (acknowledged, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.times), h.doubtful
}

// firstAfter is when the first write after a moment was acknowledged.
func (h *history) firstAfter(moment time.Time) (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := sort.Search(len(h.times), func(i int) bool { return h.times[i].After(moment) })
	if i == len(h.times) {
		return time.Time{}, false
	}
	return h.times[i], true
}

// event is what a watcher saw: one put.
type event struct {
	revision int64
	key      string
}

// watcher notes all it is told.
type watcher struct {
	name   string
	mu     sync.Mutex
	events []event
	faults []string
}

func startWatcher(ctx context.Context, endpoints []string, number int) (*watcher, error) {
	// Each begins at another member.
	turned := append(append([]string{}, endpoints[number%len(endpoints):]...), endpoints[:number%len(endpoints)]...)
	client, err := cluster.Dial(turned...)
	if err != nil {
		return nil, err
	}
	w := &watcher{name: fmt.Sprintf("watcher %d", number)}
	channel := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(1))
	go func() {
		defer client.Close()
		for response := range channel {
			w.take(response)
		}
		if ctx.Err() == nil {
			w.fault("the watch ended by itself")
		}
	}()
	return w, nil
}

func (w *watcher) take(response clientv3.WatchResponse) {
	if err := response.Err(); err != nil {
		w.fault(err.Error())
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range response.Events {
		w.events = append(w.events, event{e.Kv.ModRevision, string(e.Kv.Key)})
		if e.Type != clientv3.EventTypePut {
			w.faults = append(w.faults, fmt.Sprintf("%s: a delete of %s that nobody asked for", w.name, e.Kv.Key))
		}
	}
}

func (w *watcher) fault(text string) {
	w.mu.Lock()
	w.faults = append(w.faults, w.name+": "+text)
	w.mu.Unlock()
}

func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events)
}

// compare waits until the watcher has seen the last revision, then asks for exactly the events there are.
func (w *watcher) compare(want []event, patience time.Duration) []string {
	deadline := time.Now().Add(patience)
	for w.count() < len(want) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	faults := append([]string{}, w.faults...)
	if len(w.events) != len(want) {
		faults = append(faults, fmt.Sprintf("%s: %d events of %d", w.name, len(w.events), len(want)))
	}
	for i := range min(len(want), len(w.events)) {
		if w.events[i] != want[i] {
			faults = append(faults, fmt.Sprintf("%s: event %d is %v, should be %v", w.name, i, w.events[i], want[i]))
			break
		}
	}
	return faults
}

// verify compares what is stored with what was promised and seen. Nothing writes meanwhile.
func verify(c *cluster.Cluster, h *history, watchers []*watcher, patience time.Duration) []string {
	h.mu.Lock()
	faults := append([]string{}, h.faults...)
	h.mu.Unlock()
	var stored []event
	var hash uint32
	var revision int64
	for i, m := range c.Members {
		found, at, sum, err := read(m, patience)
		if err != nil {
			faults = append(faults, fmt.Sprintf("member %d: %v", i, err))
			continue
		}
		faults = append(faults, h.lost(found, i)...)
		if stored == nil {
			stored, hash, revision = found, sum, at
			continue
		}
		if len(found) != len(stored) {
			faults = append(faults, fmt.Sprintf("member %d has %d keys, member 0 has %d", i, len(found), len(stored)))
		}
		if sum != hash || at != revision {
			faults = append(faults, fmt.Sprintf("member %d has hash %d at revision %d, member 0 has %d at %d", i, sum, at, hash, revision))
		}
	}
	for _, w := range watchers {
		faults = append(faults, w.compare(stored, patience)...)
	}
	return faults
}

// read returns all keys in the order they were written, the revision, and the hash of the member at that revision.
func read(m *cluster.Member, patience time.Duration) ([]event, int64, uint32, error) {
	client, err := cluster.Dial(m.Client)
	if err != nil {
		return nil, 0, 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, 0, 0, fmt.Errorf("get: %w", err)
	}
	found := make([]event, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		found = append(found, event{kv.ModRevision, string(kv.Key)})
	}
	// Keys of one transaction were put in the order of their names, and Kvs come in that order.
	sort.SliceStable(found, func(i, j int) bool { return found[i].revision < found[j].revision })
	hash, err := client.HashKV(ctx, m.Client, response.Header.Revision)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("hash: %w", err)
	}
	return found, response.Header.Revision, hash.Hash, nil
}

// lost lists promises that a member does not keep.
func (h *history) lost(found []event, member int) []string {
	stored := map[string]int64{}
	for _, e := range found {
		stored[e.key] = e.revision
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var faults []string
	for key, revision := range h.revisions {
		switch at, there := stored[key]; {
		case !there:
			faults = append(faults, fmt.Sprintf("member %d lost %s, acknowledged at revision %d", member, key, revision))
		case at != revision:
			faults = append(faults, fmt.Sprintf("member %d has %s at revision %d, acknowledged at %d", member, key, at, revision))
		}
	}
	sort.Strings(faults)
	return faults
}
