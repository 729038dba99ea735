// Command differential sends one random sequence of requests to two servers and compares every answer.
//
//	differential --a 127.0.0.1:2379 --b 127.0.0.1:2479 --ops 5000 --seed 1
//
// A path instead of an address names a server binary, which is started on loopback for the run.
//
// Both must be fresh: nothing stored, nothing compacted. The sequence follows from the seed: keys, values, options, histories,
// transactions, leases, compactions, watches, and requests that break every rule there is. Compared are codes, texts, revisions,
// counts, pairs and their order, events, and hashes of the whole store. Masked is what two servers cannot agree on: ids
// of clusters and members, terms, the seconds a lease has left, and the order of pairs that a sort does not decide.
//
// Differences known between versions can be allowed by name (see --list).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"dolmen.invalid/interop/internal/cluster"
)

// side is one of the two servers.
type side struct {
	name        string
	conn        *grpc.ClientConn
	kv          pb.KVClient
	lease       pb.LeaseClient
	watch       pb.WatchClient
	maintenance pb.MaintenanceClient
}

func dial(name, endpoint string) (*side, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
	)
	if err != nil {
		return nil, err
	}
	return &side{
		name, conn, pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn), pb.NewMaintenanceClient(conn),
	}, nil
}

// shown is how many differences are printed before the run ends.
const shown = 10

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
}

func run() error {
	a := flag.String("a", "", "first server: host:port (of a comma separated list the first is used), or the path of a binary")
	b := flag.String("b", "", "second server")
	ops := flag.Int("ops", 2000, "operations to send")
	seed := flag.Int64("seed", 1, "seed of the sequence")
	allow := flag.String("allow", "", "comma separated names of known differences to pass over")
	list := flag.Bool("list", false, "list the names of known differences")
	verbose := flag.Bool("v", false, "print every request before it is sent")
	flag.Parse()
	if *list {
		for _, name := range knownNames() {
			fmt.Printf("%-18s %s\n", name, known[name].about)
		}
		return nil
	}
	d := &differential{random: newRandom(*seed), allowed: map[string]bool{}, verbose: *verbose, passed: map[string]int{}, kinds: map[string]int{}}
	for _, name := range strings.FieldsFunc(*allow, func(r rune) bool { return r == ',' }) {
		if _, exists := known[name]; !exists {
			return fmt.Errorf("unknown difference %q; known are %s", name, strings.Join(knownNames(), ", "))
		}
		d.allowed[name] = true
	}
	for i, endpoints := range []string{*a, *b} {
		endpoint, _, _ := strings.Cut(endpoints, ",")
		if endpoint == "" {
			return errors.New("both --a and --b are needed")
		}
		if strings.Contains(endpoint, "/") {
			started, stop, err := start(endpoint)
			if err != nil {
				return err
			}
			defer stop()
			endpoint = started
		}
		side, err := dial([]string{"a", "b"}[i], endpoint)
		if err != nil {
			return err
		}
		defer side.conn.Close()
		d.sides[i] = side
	}
	if err := d.requireFresh(); err != nil {
		return err
	}
	started := time.Now()
	for d.sent < *ops && len(d.differences) < shown {
		d.step()
	}
	if len(d.differences) < shown {
		d.checkpoint()
		d.history()
	}
	return d.report(*seed, time.Since(started))
}

// start runs one member of a server binary and returns its address.
func start(binary string) (string, func(), error) {
	dir, err := os.MkdirTemp("", "differential")
	if err != nil {
		return "", nil, err
	}
	c, err := cluster.New(cluster.Config{Binary: binary, Members: 1, Dir: dir})
	if err != nil {
		return "", nil, err
	}
	stop := func() {
		c.Stop()
		os.RemoveAll(dir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		stop()
		return "", nil, err
	}
	return c.Endpoints()[0], stop, nil
}

// differential is one run.
type differential struct {
	sides   [2]*side
	random  *random
	allowed map[string]bool
	verbose bool

	sent        int
	differences []string
	// passed counts differences that were allowed, by name; kinds counts operations.
	passed, kinds map[string]int

	// revision and compacted are what the first server last said.
	revision, compacted int64
}

func (d *differential) requireFresh() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range d.sides {
		response, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
		if response.Header.Revision != 1 {
			return fmt.Errorf("server %s stands at revision %d; both must be fresh", s.name, response.Header.Revision)
		}
		d.revision = 1
	}
	return nil
}

func (d *differential) report(seed int64, took time.Duration) error {
	for _, text := range d.differences {
		fmt.Println(text)
	}
	var kinds []string
	for kind, count := range d.kinds {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, count))
	}
	sort.Strings(kinds)
	fmt.Printf("seed %d, revision %d, %.1f s: %s\n", seed, d.revision, took.Seconds(), strings.Join(kinds, ", "))
	for _, name := range knownNames() {
		if count := d.passed[name]; count > 0 {
			fmt.Printf("allowed %s: %d\n", name, count)
		}
	}
	fmt.Printf("differential: %d operations, %d differences\n", d.sent, len(d.differences))
	if len(d.differences) > 0 {
		return errors.New("the servers differ")
	}
	return nil
}
