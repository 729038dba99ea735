// Command randomdb fills a running cluster with everything that a data directory can hold, by a seed.
//
//	randomdb --endpoints A,B --seed 1 [--ops 2000] [--learner http://127.0.0.1:1]
//
// Puts and deletes, alone, in ranges and in nested transactions, some under leases of an hour; leases granted and revoked, with
// their keys; compactions; users, roles and permissions, with authentication never enabled; a learner that nobody starts. The
// releases from 3.5 on take all of it. It prints one line: the revision it has come to, and what it did.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// filler is one run.
type filler struct {
	client   *clientv3.Client
	random   *rand.Rand
	leases   []clientv3.LeaseID
	revision int64
	counts   map[string]int
}

func main() {
	endpoints := flag.String("endpoints", "127.0.0.1:2379", "where the cluster listens, separated by commas")
	seed := flag.Int64("seed", 1, "what follows, follows from this")
	operations := flag.Int("ops", 2000, "requests")
	learner := flag.String("learner", "", "peer URL of a learner to add")
	flag.Parse()
	if err := run(strings.Split(*endpoints, ","), *seed, *operations, *learner); err != nil {
		fmt.Fprintln(os.Stderr, "randomdb:", err)
		os.Exit(1)
	}
}

func run(endpoints []string, seed int64, operations int, learner string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	f := &filler{client: client, random: rand.New(rand.NewSource(seed)), counts: map[string]int{}}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for done := 0; done < operations; done++ {
		if err := f.step(ctx); err != nil {
			return fmt.Errorf("request %d: %w", done, err)
		}
	}
	if err := f.users(ctx); err != nil {
		return err
	}
	if learner != "" {
		if err := f.learner(ctx, learner); err != nil {
			return fmt.Errorf("adding a learner: %w", err)
		}
	}
	// Something behind the last compaction, so that both sides of it are there.
	if err := f.put(ctx); err != nil {
		return err
	}
	fmt.Printf("revision %d, %v\n", f.revision, f.counts)
	return nil
}

func (f *filler) step(ctx context.Context) error {
	switch draw := f.random.Intn(1000); {
	case draw < 550:
		return f.put(ctx)
	case draw < 700:
		return f.delete(ctx)
	case draw < 900:
		return f.txn(ctx)
	case draw < 940:
		return f.grant(ctx)
	case draw < 960:
		return f.revoke(ctx)
	case draw < 965:
		return f.compact(ctx)
	default:
		return f.deleteRange(ctx)
	}
}

// key is one of few, so that most have a history.
func (f *filler) key() string {
	return fmt.Sprintf("key/%03d", f.random.Intn(300))
}

// value is small, or, now and then, larger than a page.
func (f *filler) value() string {
	size := f.random.Intn(200)
	if f.random.Intn(50) == 0 {
		size = f.random.Intn(20_000)
	}
	bytes := make([]byte, size)
	f.random.Read(bytes)
	return string(bytes)
}

func (f *filler) put(ctx context.Context) error {
	var options []clientv3.OpOption
	if len(f.leases) > 0 && f.random.Intn(4) == 0 {
		options = append(options, clientv3.WithLease(f.leases[f.random.Intn(len(f.leases))]))
	}
	response, err := f.client.Put(ctx, f.key(), f.value(), options...)
	if err == nil {
		f.did("put", response.Header.Revision)
	}
	return err
}

func (f *filler) delete(ctx context.Context) error {
	response, err := f.client.Delete(ctx, f.key())
	if err == nil {
		f.did("delete", response.Header.Revision)
	}
	return err
}

func (f *filler) deleteRange(ctx context.Context) error {
	from := f.random.Intn(300)
	end := fmt.Sprintf("key/%03d", from+f.random.Intn(10))
	response, err := f.client.Delete(ctx, fmt.Sprintf("key/%03d", from), clientv3.WithRange(end))
	if err == nil {
		f.did("delete range", response.Header.Revision)
	}
	return err
}

func (f *filler) txn(ctx context.Context) error {
	condition := clientv3.Compare(clientv3.Version(f.key()), ">", f.random.Intn(3))
	// A transaction may not put a key twice, so each has keys of its own.
	names := f.random.Perm(300)
	branch := func(names []int) []clientv3.Op {
		var ops []clientv3.Op
		for _, name := range names {
			key := fmt.Sprintf("key/%03d", name)
			if f.random.Intn(3) == 0 {
				ops = append(ops, clientv3.OpDelete(key))
			} else {
				ops = append(ops, clientv3.OpPut(key, f.value()))
			}
		}
		return ops
	}
	nested := clientv3.OpTxn([]clientv3.Cmp{condition}, branch(names[5:7]), branch(names[7:8]))
	response, err := f.client.Txn(ctx).If(condition).
		Then(append(branch(names[:1+f.random.Intn(4)]), nested)...).Else(branch(names[10:12])...).Commit()
	if err == nil {
		f.did("txn", response.Header.Revision)
	}
	return err
}

func (f *filler) grant(ctx context.Context) error {
	response, err := f.client.Grant(ctx, 3600+int64(f.random.Intn(3600)))
	if err == nil {
		f.leases = append(f.leases, response.ID)
		f.did("grant", f.revision)
	}
	return err
}

func (f *filler) revoke(ctx context.Context) error {
	if len(f.leases) == 0 {
		return nil
	}
	at := f.random.Intn(len(f.leases))
	response, err := f.client.Revoke(ctx, f.leases[at])
	if err == nil {
		f.leases = append(f.leases[:at], f.leases[at+1:]...)
		f.did("revoke", response.Header.Revision)
	}
	return err
}

func (f *filler) compact(ctx context.Context) error {
	if f.revision < 50 {
		return nil
	}
	var options []clientv3.CompactOption
	if f.random.Intn(2) == 0 {
		options = append(options, clientv3.WithCompactPhysical())
	}
	at := f.revision - int64(f.random.Intn(40))
	if _, err := f.client.Compact(ctx, at, options...); err != nil && !strings.Contains(err.Error(), "compacted") {
		return err
	}
	f.did("compact", f.revision)
	return nil
}

func (f *filler) users(ctx context.Context) error {
	for at := range 1 + f.random.Intn(4) {
		user, role := fmt.Sprintf("user%d", at), fmt.Sprintf("role%d", at)
		if _, err := f.client.UserAdd(ctx, user, "secret"); err != nil {
			return fmt.Errorf("adding a user: %w", err)
		}
		if _, err := f.client.RoleAdd(ctx, role); err != nil {
			return fmt.Errorf("adding a role: %w", err)
		}
		kind := clientv3.PermissionType(f.random.Intn(3))
		if _, err := f.client.RoleGrantPermission(ctx, role, "key/", "key0", kind); err != nil {
			return fmt.Errorf("granting a permission: %w", err)
		}
		if _, err := f.client.UserGrantRole(ctx, user, role); err != nil {
			return fmt.Errorf("granting a role: %w", err)
		}
		f.counts["user"]++
	}
	return nil
}

// learner waits until the cluster takes one: members have to have been connected for some seconds.
func (f *filler) learner(ctx context.Context, url string) error {
	for {
		_, err := f.client.MemberAddAsLearner(ctx, []string{url})
		if err == nil || !strings.Contains(err.Error(), "unhealthy cluster") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (f *filler) did(what string, revision int64) {
	f.counts[what]++
	f.revision = max(f.revision, revision)
}
