package interop

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"dolmen.invalid/interop/internal/cluster"
)

func TestStatus(t *testing.T) {
	e := setup(t)
	revision := e.put("a", "1").Header.Revision
	members, err := e.client.MemberList(e.ctx)
	e.ok(err)
	equal(e, "members", len(members.Members) >= len(endpoints), true)
	ids := map[uint64]bool{}
	for _, member := range members.Members {
		ids[member.ID] = true
		equal(e, "has peer URLs", len(member.PeerURLs) > 0, true)
	}
	leaders := map[uint64]bool{}
	for _, endpoint := range endpoints {
		status, err := e.client.Status(e.ctx, endpoint)
		e.ok(err)
		leaders[status.Leader] = true
		equal(e, "is a member", ids[status.Header.MemberId], true)
		equal(e, "version", status.Version != "", true)
		equal(e, "size", status.DbSize > 0 && status.DbSizeInUse > 0 && status.DbSizeInUse <= status.DbSize, true)
		equal(e, "raft", status.RaftTerm > 0 && status.RaftIndex >= status.RaftAppliedIndex, true)
		equal(e, "no errors", len(status.Errors), 0)
		equal(e, "no learner", status.IsLearner, false)
		equal(e, "revision", status.Header.Revision >= revision || len(endpoints) > 1, true)
	}
	equal(e, "one leader", len(leaders), 1)
	alarms, err := e.client.AlarmList(e.ctx)
	e.ok(err)
	equal(e, "no alarms", len(alarms.Alarms), 0)
}

// hashes asks every member for its hash at a revision, waiting for those that are behind.
func (e *env) hashes(revision int64) []*clientv3.HashKVResponse {
	e.Helper()
	var all []*clientv3.HashKVResponse
	for _, endpoint := range endpoints {
		for {
			response, err := e.client.HashKV(e.ctx, endpoint, revision)
			if err == nil {
				all = append(all, response)
				break
			}
			e.fails("a member behind", err, rpctypes.ErrFutureRev)
			time.Sleep(10 * time.Millisecond)
		}
	}
	return all
}

func TestHashKV(t *testing.T) {
	e := setup(t)
	first := e.put("a", "1").Header.Revision
	hash := e.hashes(first)[0].Hash
	second := e.put("a", "2").Header.Revision
	all := e.hashes(second)
	for _, response := range all {
		equal(e, "hash of every member", response.Hash, all[0].Hash)
		equal(e, "hash revision", response.HashRevision, second)
		equal(e, "compact revision", response.CompactRevision, all[0].CompactRevision)
	}
	equal(e, "another revision, another hash", all[0].Hash != hash, true)
	equal(e, "the past keeps its hash", e.hashes(first)[0].Hash, hash)
	_, err := e.client.HashKV(e.ctx, endpoints[0], second+1000)
	e.fails("future", err, rpctypes.ErrFutureRev)

	_, err = e.client.Compact(e.ctx, second, clientv3.WithCompactPhysical())
	e.ok(err)
	_, err = e.client.HashKV(e.ctx, e.client.Endpoints()[0], first)
	e.fails("compacted", err, rpctypes.ErrCompacted)
	third := e.put("b", "").Header.Revision
	all = e.hashes(third)
	for _, response := range all {
		equal(e, "hash after a compaction", response.Hash, all[0].Hash)
		equal(e, "compact revision", response.CompactRevision, second)
	}
}

func TestSnapshotIsABoltFileWithItsHash(t *testing.T) {
	e := setup(t)
	e.put("a", "first")
	e.put("a", "second")
	stream, err := e.client.SnapshotWithVersion(e.ctx)
	e.ok(err)
	saved, err := io.ReadAll(stream.Snapshot)
	e.ok(err)
	e.ok(stream.Snapshot.Close())
	equal(e, "storage version", stream.Version != "", true)
	equal(e, "length with a hash", len(saved)%512, 32)
	db, hash := saved[:len(saved)-32], saved[len(saved)-32:]
	sum := sha256.Sum256(db)
	equal(e, "hash", bytes.Equal(sum[:], hash), true)

	path := filepath.Join(t.TempDir(), "db")
	e.ok(os.WriteFile(path, db, 0o600))
	file, err := bolt.Open(path, 0o600, nil)
	e.ok(err)
	defer file.Close()
	found := ""
	e.ok(file.View(func(tx *bolt.Tx) error {
		for fault := range tx.Check() {
			t.Error(fault)
		}
		for _, name := range []string{"key", "meta", "lease", "auth", "authUsers", "authRoles", "members", "members_removed", "cluster", "alarm"} {
			equal(e, "bucket "+name, tx.Bucket([]byte(name)) != nil, true)
		}
		return tx.Bucket([]byte("key")).ForEach(func(_, value []byte) error {
			var kv mvccpb.KeyValue
			if err := proto.Unmarshal(value, &kv); err != nil {
				return err
			}
			if string(kv.Key) == e.key("a") {
				found += string(kv.Value) + " "
			}
			return nil
		})
	}))
	equal(e, "both revisions of the key", found, "first second ")
}

func TestDefragmentLosesNothing(t *testing.T) {
	e := setup(t)
	revision := e.put("a", "1").Header.Revision
	before := e.hashes(revision)
	for _, endpoint := range endpoints {
		_, err := e.client.Defragment(e.ctx, endpoint)
		e.ok(err)
	}
	for i, response := range e.hashes(revision) {
		equal(e, "hash", response.Hash, before[i].Hash)
	}
	equal(e, "value", string(e.get("a").Kvs[0].Value), "1")
}

func TestMoveLeader(t *testing.T) {
	e := setup(t)
	if len(endpoints) < 2 {
		t.Skip("moving the leader needs two members")
	}
	var leader, follower string
	var target uint64
	for _, endpoint := range endpoints {
		status, err := e.client.Status(e.ctx, endpoint)
		e.ok(err)
		if status.Leader == status.Header.MemberId {
			leader = endpoint
		} else {
			follower, target = endpoint, status.Header.MemberId
		}
	}
	at := func(endpoint string, id uint64) error {
		client, err := cluster.Dial(endpoint)
		e.ok(err)
		defer client.Close()
		_, err = client.MoveLeader(e.ctx, id)
		return err
	}
	e.fails("asked of a follower", at(follower, target), rpctypes.ErrNotLeader)
	e.fails("to nobody", at(leader, 12345), rpctypes.ErrBadLeaderTransferee)
	e.ok(at(leader, target))
	status, err := e.client.Status(e.ctx, follower)
	e.ok(err)
	equal(e, "leader", status.Leader, target)
	e.put("a", "after")
}
