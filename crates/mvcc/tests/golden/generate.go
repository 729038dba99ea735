//go:build ignore

// Plays random histories on etcd's own mvcc store and prints what it answers, as hashes.txt beside this file has it.
//
//	cd interop && go run ../crates/mvcc/tests/golden/generate.go > ../crates/mvcc/tests/golden/hashes.txt
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"go.etcd.io/etcd/pkg/v3/traceutil"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

func main() {
	fmt.Println("# etcd server v3.7.3, storage/mvcc")
	for seed := int64(1); seed <= 6; seed++ {
		history(seed)
	}
}

func history(seed int64) {
	rng := rand.New(rand.NewSource(seed))
	dir, err := os.MkdirTemp("", "golden")
	check(err)
	defer os.RemoveAll(dir)
	be := backend.NewDefaultBackend(zap.NewNop(), filepath.Join(dir, "db"))
	tx := be.BatchTx()
	tx.LockOutsideApply()
	for _, bucket := range schema.AllBuckets {
		tx.UnsafeCreateBucket(bucket)
	}
	tx.Unlock()
	cfg := mvcc.StoreConfig{CompactionBatchLimit: 7}
	s := mvcc.NewStore(zap.NewNop(), be, &lease.FakeLessor{}, cfg)
	fmt.Println("new")
	compacted := int64(-1)
	for step := 0; step < 160; step++ {
		switch n := rng.Intn(20); {
		case n < 12:
			// One request; - begins a put, and ! a delete of a range.
			txn := s.Write(traceutil.TODO())
			fmt.Print("txn")
			seen := map[string]bool{}
			for i := rng.Intn(3); i >= 0; i-- {
				key := fmt.Sprintf("k%d", rng.Intn(9))
				if seen[key] {
					continue
				}
				seen[key] = true
				if rng.Intn(3) > 0 {
					value := fmt.Sprintf("v%d", rng.Intn(1000))
					lease := lease.LeaseID(rng.Intn(2) * rng.Intn(5))
					fmt.Printf(" put %s %s %d", key, value, lease)
					txn.Put([]byte(key), []byte(value), lease)
				} else if rng.Intn(6) == 0 && len(seen) == 1 {
					fmt.Print(" del k l")
					txn.DeleteRange([]byte("k"), []byte("l"))
					break
				} else {
					fmt.Printf(" del %s -", key)
					txn.DeleteRange([]byte(key), nil)
				}
			}
			txn.End()
			fmt.Printf(" = %d\n", s.Rev())
		case n < 14:
			rev := s.Rev() - int64(rng.Intn(6))
			if rng.Intn(4) == 0 {
				rev = s.Rev()
			}
			done, err := s.Compact(traceutil.TODO(), rev)
			if err == nil {
				<-done
				compacted = rev
			}
			fmt.Printf("compact %d = %s\n", rev, text(err))
		case n < 15:
			s.Commit()
			check(s.Close())
			s = mvcc.NewStore(zap.NewNop(), be, &lease.FakeLessor{}, cfg)
			fmt.Printf("reopen = %d\n", s.Rev())
		case n < 16:
			hash, rev, err := s.HashStorage().Hash()
			check(err)
			fmt.Printf("hash = %d at %d\n", hash, rev)
		case n < 17:
			from := compacted - 1 + int64(rng.Intn(int(s.Rev()-compacted)+3))
			result, err := s.Range(context.TODO(), []byte("k"), []byte("l"), mvcc.RangeOptions{Rev: from, WithTotalCount: true})
			fmt.Printf("range %d =", from)
			if err != nil {
				fmt.Printf(" %s\n", text(err))
				break
			}
			for _, kv := range result.KVs {
				fmt.Printf(" %s:%d:%d:%d", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Version)
			}
			fmt.Println(" ok")
		default:
			rev := compacted - 1 + int64(rng.Intn(int(s.Rev()-compacted)+3))
			hash, current, err := s.HashStorage().HashByRev(rev)
			if err != nil {
				fmt.Printf("hashkv %d = %s\n", rev, text(err))
				break
			}
			fmt.Printf("hashkv %d = %d %d %d at %d\n", rev, hash.Hash, hash.CompactRevision, hash.Revision, current)
		}
	}
	check(s.Close())
	check(be.Close())
}

func text(err error) string {
	switch err {
	case nil:
		return "ok"
	case mvcc.ErrCompacted:
		return "compacted"
	case mvcc.ErrFutureRev:
		return "future"
	}
	panic(err)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
