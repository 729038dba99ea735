// Command kill9 kills members of a loaded cluster without warning and counts what was promised and is gone.
//
//	kill9 --server PATH [--members 3] [--rounds 5] [--victim leader|all|random] [--writers 8] [--watchers 4]
//
// Writers put new keys all the time, one in ten as a transaction of two. What a server acknowledges is noted with its revision.
// Watchers follow from the first revision, each through its own client, over every reconnect. Each round sends SIGKILL to the
// victims, starts them again, and waits until all members answer linearizable reads. After the rounds, and once more after a
// kill of all members:
//
//   - every acknowledged key is there, at every member, with the revision that was acknowledged,
//   - every watcher has seen each revision there is once, in order, and nothing else,
//   - all members give the same hash.
//
// It prints one line and exits 1 when any of this does not hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"dolmen.invalid/interop/internal/cluster"
)

// prefix of every key written here.
const prefix = "w"

type options struct {
	rounds, writers, watchers int
	victim                    string
	pause, down, patience     time.Duration
}

func main() {
	server := flag.String("server", "", "server binary")
	members := flag.Int("members", 3, "members of the cluster")
	extra := flag.String("flags", "", "more flags for the server, separated by spaces")
	seed := flag.Int64("seed", 1, "seed for the choice of victims")
	keep := flag.String("dir", "", "directory for data and logs, kept; a temporary one otherwise")
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "kills")
	flag.StringVar(&o.victim, "victim", "leader", "leader, all, or random")
	flag.IntVar(&o.writers, "writers", 8, "clients that write")
	flag.IntVar(&o.watchers, "watchers", 4, "clients that watch")
	flag.DurationVar(&o.pause, "pause", 1500*time.Millisecond, "load before each kill")
	flag.DurationVar(&o.down, "down", 500*time.Millisecond, "how long victims stay down")
	flag.DurationVar(&o.patience, "patience", 30*time.Second, "longest time to get ready again")
	flag.Parse()
	if *server == "" || o.victim != "leader" && o.victim != "all" && o.victim != "random" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*server, *members, strings.Fields(*extra), *seed, *keep, o); err != nil {
		fmt.Fprintln(os.Stderr, "kill9:", err)
		os.Exit(1)
	}
}

func run(server string, members int, flags []string, seed int64, dir string, o options) error {
	if dir == "" {
		temporary, err := os.MkdirTemp("", "kill9")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		dir = temporary
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	c, err := cluster.New(cluster.Config{Binary: server, Members: members, Dir: dir, Flags: flags})
	if err != nil {
		return err
	}
	defer c.Stop()
	if _, err := timeReady(c.Start, o.patience); err != nil {
		return err
	}

	h := newHistory()
	load, stopLoad := context.WithCancel(context.Background())
	defer stopLoad()
	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	var watchers []*watcher
	for i := range o.watchers {
		w, err := startWatcher(watching, c.Endpoints(), i)
		if err != nil {
			return err
		}
		watchers = append(watchers, w)
	}
	var writing sync.WaitGroup
	for i := range o.writers {
		writing.Add(1)
		go func() {
			defer writing.Done()
			write(load, h, c.Endpoints(), i)
		}()
	}

	random := rand.New(rand.NewSource(seed))
	var worst round
	for i := range o.rounds {
		time.Sleep(o.pause)
		took, err := killOnce(c, h, victims(c, o.victim, random), o)
		if err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
		worst.write, worst.ready = max(worst.write, took.write), max(worst.ready, took.ready)
	}
	time.Sleep(o.pause)
	stopLoad()
	writing.Wait()

	faults := verify(c, h, watchers, o.patience)
	for _, m := range c.Members {
		m.Kill()
	}
	if _, err := timeReady(c.Start, o.patience); err != nil {
		return fmt.Errorf("after the last kill: %w", err)
	}
	for _, fault := range verify(c, h, watchers, o.patience) {
		faults = append(faults, "after the last kill: "+fault)
	}
	for i, fault := range faults {
		if i == 20 {
			fmt.Printf("and %d more\n", len(faults)-i)
			break
		}
		fmt.Println(fault)
	}
	acknowledged, unknown := h.counts()
	fmt.Printf("kill9: %d members, %d kills of %s, %d acknowledged, %d unknown, %d events to each of %d watchers, %d faults; "+
		"next write after at most %.2f s, all ready within %.2f s of the restart\n",
		members, o.rounds, o.victim, acknowledged, unknown, watchers0(watchers), len(watchers), len(faults),
		worst.write.Seconds(), worst.ready.Seconds())
	if acknowledged == 0 {
		return errors.New("nothing was acknowledged at all")
	}
	if len(faults) > 0 {
		return errors.New("promises were broken")
	}
	return nil
}

func watchers0(watchers []*watcher) int {
	if len(watchers) == 0 {
		return 0
	}
	return watchers[0].count()
}

// timeReady runs something that ends when the cluster is ready, and says how long it took.
func timeReady(what func(context.Context) error, patience time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	started := time.Now()
	err := what(ctx)
	return time.Since(started), err
}

// round is how long the cluster needed after a kill: until the next acknowledged write, and from the restart until all
// members were ready.
type round struct {
	write, ready time.Duration
}

func killOnce(c *cluster.Cluster, h *history, victims []*cluster.Member, o options) (round, error) {
	for _, m := range victims {
		m.Kill()
	}
	killed := time.Now()
	time.Sleep(o.down)
	for _, m := range victims {
		if err := m.Start(); err != nil {
			return round{}, err
		}
	}
	ready, err := timeReady(c.WaitReady, o.patience)
	if err != nil {
		return round{}, err
	}
	deadline := time.Now().Add(o.patience)
	for {
		if next, ok := h.firstAfter(killed); ok {
			return round{next.Sub(killed), ready}, nil
		}
		if time.Now().After(deadline) {
			return round{}, errors.New("ready, but no write is acknowledged")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func victims(c *cluster.Cluster, kind string, random *rand.Rand) []*cluster.Member {
	switch kind {
	case "all":
		return c.Members
	case "random":
		return []*cluster.Member{c.Members[random.Intn(len(c.Members))]}
	}
	for _, m := range c.Members {
		if isLeader(m) {
			return []*cluster.Member{m}
		}
	}
	return c.Members[:1]
}

func isLeader(m *cluster.Member) bool {
	client, err := cluster.Dial(m.Client)
	if err != nil {
		return false
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	status, err := client.Status(ctx, m.Client)
	return err == nil && status.Leader == status.Header.MemberId
}

// write puts new keys until the context ends. A key whose answer is an error is never tried again: it may be stored or not.
func write(ctx context.Context, h *history, endpoints []string, writer int) {
	client, err := cluster.Dial(endpoints...)
	if err != nil {
		h.fault(fmt.Sprintf("writer %d: %v", writer, err))
		return
	}
	defer client.Close()
	last := int64(0)
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("%s%d/%08d", prefix, writer, n)
		value := strings.Repeat("v", 100)
		attempt, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		var revision int64
		keys := []string{key}
		if n%10 == 9 {
			keys = []string{key + "/a", key + "/b"}
			var response *clientv3.TxnResponse
			response, err = client.Txn(attempt).Then(clientv3.OpPut(keys[0], value), clientv3.OpPut(keys[1], value)).Commit()
			if err == nil {
				revision = response.Header.Revision
			}
		} else {
			var response *clientv3.PutResponse
			response, err = client.Put(attempt, key, value)
			if err == nil {
				revision = response.Header.Revision
			}
		}
		cancel()
		if err != nil {
			h.unknown()
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if revision <= last {
			h.fault(fmt.Sprintf("writer %d: revision %d was acknowledged after revision %d", writer, revision, last))
		}
		last = revision
		h.acknowledged(keys, revision)
	}
}
