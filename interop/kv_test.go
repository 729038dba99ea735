package interop

import (
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func TestPutCountsRevisionsAndVersions(t *testing.T) {
	e := setup(t)
	first := e.put("a", "1", clientv3.WithPrevKV())
	equal(e, "previous pair of a new key", first.PrevKv == nil, true)
	second := e.put("a", "2", clientv3.WithPrevKV())
	equal(e, "revision", second.Header.Revision, first.Header.Revision+1)
	equal(e, "previous value", string(second.PrevKv.Value), "1")
	equal(e, "previous version", second.PrevKv.Version, 1)

	kv := e.get("a").Kvs[0]
	equal(e, "value", string(kv.Value), "2")
	equal(e, "version", kv.Version, 2)
	equal(e, "create revision", kv.CreateRevision, first.Header.Revision)
	equal(e, "mod revision", kv.ModRevision, second.Header.Revision)

	_, err := e.client.Delete(e.ctx, e.key("a"))
	e.ok(err)
	third := e.put("a", "")
	kv = e.get("a").Kvs[0]
	equal(e, "version after a delete", kv.Version, 1)
	equal(e, "create revision after a delete", kv.CreateRevision, third.Header.Revision)
	equal(e, "empty value", len(kv.Value), 0)
}

func TestHeadersNameClusterMemberAndTerm(t *testing.T) {
	e := setup(t)
	header := e.put("a", "").Header
	if header.ClusterId == 0 || header.MemberId == 0 || header.RaftTerm == 0 || header.Revision == 0 {
		t.Fatalf("header with a zero: %v", header)
	}
}

func TestKeysAndValuesAreBytes(t *testing.T) {
	e := setup(t)
	for _, name := range []string{"\x00", "\xff\xfe", "line\nbreak", strings.Repeat("k", 5000)} {
		e.put(name, name)
		got := e.get(name)
		equal(e, fmt.Sprintf("value of %.20q", name), string(got.Kvs[0].Value), name)
	}
	big := strings.Repeat("v", 1<<20)
	e.put("big", big)
	equal(e, "a value of 1 MiB", string(e.get("big").Kvs[0].Value) == big, true)
}

func TestDelete(t *testing.T) {
	e := setup(t)
	for _, name := range []string{"a", "b1", "b2", "c"} {
		e.put(name, "v"+name)
	}
	before := e.get("a").Header.Revision
	response, err := e.client.Delete(e.ctx, e.key("none"))
	e.ok(err)
	equal(e, "deleted none", response.Deleted, 0)
	equal(e, "revision after deleting nothing", response.Header.Revision, before)

	response, err = e.client.Delete(e.ctx, e.key("b"), clientv3.WithPrefix(), clientv3.WithPrevKV())
	e.ok(err)
	equal(e, "deleted", response.Deleted, 2)
	equal(e, "one revision for both", response.Header.Revision, before+1)
	equal(e, "first previous", string(response.PrevKvs[0].Value), "vb1")
	equal(e, "second previous", string(response.PrevKvs[1].Value), "vb2")
	equal(e, "what is left", e.names(e.all()), "a c")

	response, err = e.client.Delete(e.ctx, e.key("a"), clientv3.WithRange(e.key("c")))
	e.ok(err)
	equal(e, "deleted up to c", response.Deleted, 1)
}

func TestRangeOptions(t *testing.T) {
	e := setup(t)
	names := []string{"a", "b", "c", "d", "e"}
	values := []string{"5", "1", "4", "2", "3"}
	var revisions []int64
	for i, name := range names {
		revisions = append(revisions, e.put(name, values[i]).Header.Revision)
	}
	e.put("b", "0")
	e.put("b", "9")
	e.put("d", "7")

	ask := func(what, want string, options ...clientv3.OpOption) *clientv3.GetResponse {
		t.Helper()
		response := e.all(options...)
		equal(e, what, e.names(response), want)
		return response
	}
	ask("prefix", "a b c d e")
	limited := ask("limit", "a b", clientv3.WithLimit(2))
	equal(e, "more", limited.More, true)
	equal(e, "count with a limit", limited.Count, 5)
	limited = ask("limit that fits", "a b c d e", clientv3.WithLimit(5))
	equal(e, "more", limited.More, false)

	ask("by key down", "e d c b a", clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	ask("by value", "e c a d b", clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend))
	ask("by value down, cut", "b d", clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend), clientv3.WithLimit(2))
	ask("by creation down", "e d c b a", clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	ask("by change", "a c e b d", clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
	ask("most changed", "b", clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend), clientv3.WithLimit(1))
	ask("last created", "e", clientv3.WithLastCreate()...)

	ask("created since", "c d e", clientv3.WithMinCreateRev(revisions[2]))
	ask("created until", "a b c", clientv3.WithMaxCreateRev(revisions[2]))
	ask("changed since", "b d e", clientv3.WithMinModRev(revisions[4]))
	filtered := ask("changed until", "a c", clientv3.WithMaxModRev(revisions[3]))
	equal(e, "count ignores filters", filtered.Count, 5)

	keys := ask("keys only", "a b c d e", clientv3.WithKeysOnly())
	for _, kv := range keys.Kvs {
		equal(e, "value with keys only", len(kv.Value), 0)
		equal(e, "mod revision with keys only", kv.ModRevision > 0, true)
	}
	counted := ask("count only", "", clientv3.WithCountOnly())
	equal(e, "count", counted.Count, 5)
	equal(e, "more with count only", counted.More, false)
	ask("serializable", "a b c d e", clientv3.WithSerializable())

	response, err := e.client.Get(e.ctx, e.key("b"), clientv3.WithRange(e.key("d")))
	e.ok(err)
	equal(e, "half open range", e.names(response), "b c")
	response, err = e.client.Get(e.ctx, e.key("d"), clientv3.WithRange(e.key("b")))
	e.ok(err)
	equal(e, "range turned around", response.Count, 0)
	response, err = e.client.Get(e.ctx, e.key("d"), clientv3.WithFromKey(), clientv3.WithLimit(2))
	e.ok(err)
	equal(e, "from key", e.names(response), "d e")
	response, err = e.client.Get(e.ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	e.ok(err)
	equal(e, "everything is at least this", response.Count >= 5, true)
}

func TestRangeStreamGivesWhatRangeGives(t *testing.T) {
	e := setup(t)
	for i := range 300 {
		e.put(fmt.Sprintf("%04d", i), strings.Repeat("v", i*10))
	}
	want := e.all()
	stream, err := e.client.GetStream(e.ctx, e.prefix, clientv3.WithPrefix())
	e.ok(err)
	got, err := clientv3.GetStreamToGetResponse(stream)
	e.ok(err)
	equal(e, "count", got.Count, want.Count)
	equal(e, "pairs", len(got.Kvs), len(want.Kvs))
	for i := range want.Kvs {
		if !proto.Equal(got.Kvs[i], want.Kvs[i]) {
			t.Fatalf("pair %d: %v and %v", i, got.Kvs[i], want.Kvs[i])
		}
	}
}

func TestHistory(t *testing.T) {
	e := setup(t)
	first := e.put("a", "1").Header.Revision
	second := e.put("a", "2").Header.Revision
	_, err := e.client.Delete(e.ctx, e.key("a"))
	e.ok(err)
	equal(e, "at first", string(e.get("a", clientv3.WithRev(first)).Kvs[0].Value), "1")
	then := e.get("a", clientv3.WithRev(second))
	equal(e, "at second", string(then.Kvs[0].Value), "2")
	equal(e, "header carries the present", then.Header.Revision > second, true)
	equal(e, "before", e.get("a", clientv3.WithRev(first-1)).Count, 0)
	equal(e, "now", e.get("a").Count, 0)

	_, err = e.client.Get(e.ctx, e.key("a"), clientv3.WithRev(then.Header.Revision+1000))
	e.fails("future", err, rpctypes.ErrFutureRev)
}

func TestCompaction(t *testing.T) {
	e := setup(t)
	first := e.put("a", "1").Header.Revision
	e.put("b", "1")
	second := e.put("a", "2").Header.Revision
	third := e.put("a", "3").Header.Revision
	_, err := e.client.Compact(e.ctx, second, clientv3.WithCompactPhysical())
	e.ok(err)

	_, err = e.client.Get(e.ctx, e.key("a"), clientv3.WithRev(first))
	e.fails("read below", err, rpctypes.ErrCompacted)
	equal(e, "read at", string(e.get("a", clientv3.WithRev(second)).Kvs[0].Value), "2")
	equal(e, "a key not changed since", string(e.get("b", clientv3.WithRev(second)).Kvs[0].Value), "1")
	equal(e, "read above", string(e.get("a", clientv3.WithRev(third)).Kvs[0].Value), "3")

	_, err = e.client.Compact(e.ctx, second)
	e.fails("compact again", err, rpctypes.ErrCompacted)
	_, err = e.client.Compact(e.ctx, third+1000)
	e.fails("compact the future", err, rpctypes.ErrFutureRev)
}

func TestPutIgnoreValueAndLease(t *testing.T) {
	e := setup(t)
	_, err := e.client.Put(e.ctx, e.key("a"), "", clientv3.WithIgnoreValue())
	e.fails("no value to keep", err, rpctypes.ErrKeyNotFound)
	_, err = e.client.Put(e.ctx, e.key("a"), "", clientv3.WithIgnoreLease())
	e.fails("no lease to keep", err, rpctypes.ErrKeyNotFound)

	lease, err := e.client.Grant(e.ctx, 600)
	e.ok(err)
	defer e.client.Revoke(e.ctx, lease.ID)
	e.put("a", "1", clientv3.WithLease(lease.ID))
	e.put("a", "2", clientv3.WithIgnoreLease())
	kv := e.get("a").Kvs[0]
	equal(e, "lease kept", clientv3.LeaseID(kv.Lease), lease.ID)
	equal(e, "value changed", string(kv.Value), "2")
	e.put("a", "", clientv3.WithIgnoreValue())
	kv = e.get("a").Kvs[0]
	equal(e, "value kept", string(kv.Value), "2")
	equal(e, "lease gone", kv.Lease, 0)

	_, err = e.rawKV().Put(e.ctx, &pb.PutRequest{Key: []byte(e.key("a")), Value: []byte("x"), IgnoreValue: true})
	e.failsWith("value and ignore", err, codes.InvalidArgument, "etcdserver: value is provided")
	_, err = e.rawKV().Put(e.ctx, &pb.PutRequest{Key: []byte(e.key("a")), Lease: 5, IgnoreLease: true})
	e.failsWith("lease and ignore", err, codes.InvalidArgument, "etcdserver: lease is provided")
}

func TestBadInput(t *testing.T) {
	e := setup(t)
	_, err := e.client.Put(e.ctx, "", "x")
	e.fails("empty key", err, rpctypes.ErrEmptyKey)
	_, err = e.client.Get(e.ctx, "")
	e.fails("empty key", err, rpctypes.ErrEmptyKey)
	_, err = e.client.Delete(e.ctx, "")
	e.fails("empty key", err, rpctypes.ErrEmptyKey)
	_, err = e.client.Put(e.ctx, e.key("a"), strings.Repeat("v", 1572864))
	e.fails("too large", err, rpctypes.ErrRequestTooLarge)
	_, err = e.client.Put(e.ctx, e.key("a"), "", clientv3.WithLease(0x7777))
	e.fails("unknown lease", err, rpctypes.ErrLeaseNotFound)

	key := []byte(e.key("a"))
	for _, request := range []*pb.RangeRequest{
		{Key: key, SortOrder: 3}, {Key: key, SortOrder: -1}, {Key: key, SortTarget: 5}, {Key: key, SortTarget: -7},
	} {
		_, err = e.rawKV().Range(e.ctx, request)
		e.failsWith(request.String(), err, codes.InvalidArgument, "etcdserver: invalid sort option")
	}
	equal(e, "nothing was stored", e.all().Count, 0)
}
