package interop

import (
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestTxnCompares(t *testing.T) {
	e := setup(t)
	lease, err := e.client.Grant(e.ctx, 600)
	e.ok(err)
	defer e.client.Revoke(e.ctx, lease.ID)
	created := e.put("a", "0").Header.Revision
	changed := e.put("a", "m", clientv3.WithLease(lease.ID)).Header.Revision
	key := e.key("a")

	type target struct {
		name               string
		compare            clientv3.Cmp
		less, same, larger any
	}
	for _, c := range []target{
		{"value", clientv3.Value(key), "l", "m", "n"},
		{"version", clientv3.Version(key), 1, 2, 3},
		{"create", clientv3.CreateRevision(key), created - 1, created, created + 1},
		{"mod", clientv3.ModRevision(key), changed - 1, changed, changed + 1},
		{"lease", clientv3.LeaseValue(key), lease.ID - 1, lease.ID, lease.ID + 1},
	} {
		for _, than := range []struct {
			operand any
			// true for =, !=, >, <
			want [4]bool
		}{
			{c.less, [4]bool{false, true, true, false}},
			{c.same, [4]bool{true, false, false, false}},
			{c.larger, [4]bool{false, true, false, true}},
		} {
			for i, sign := range []string{"=", "!=", ">", "<"} {
				response, err := e.client.Txn(e.ctx).If(clientv3.Compare(c.compare, sign, than.operand)).Commit()
				e.ok(err)
				equal(e, fmt.Sprintf("%s %s %v", c.name, sign, than.operand), response.Succeeded, than.want[i])
			}
		}
	}
}

func TestTxnComparesOfNothing(t *testing.T) {
	e := setup(t)
	key := e.key("none")
	for what, c := range map[string]struct {
		compare clientv3.Cmp
		want    bool
	}{
		"version = 0":  {clientv3.Compare(clientv3.Version(key), "=", 0), true},
		"create = 0":   {clientv3.Compare(clientv3.CreateRevision(key), "=", 0), true},
		"mod < 1":      {clientv3.Compare(clientv3.ModRevision(key), "<", 1), true},
		"lease = 0":    {clientv3.Compare(clientv3.LeaseValue(key), "=", 0), true},
		"value = ''":   {clientv3.Compare(clientv3.Value(key), "=", ""), false},
		"value != 'x'": {clientv3.Compare(clientv3.Value(key), "!=", "x"), false},
	} {
		response, err := e.client.Txn(e.ctx).If(c.compare).Commit()
		e.ok(err)
		equal(e, what, response.Succeeded, c.want)
	}
	// A range compare holds when it holds for every key in the range.
	e.put("r1", "x")
	e.put("r2", "x")
	for value, want := range map[string]bool{"x": true, "y": false} {
		compare := clientv3.Compare(clientv3.Value(e.key("r")), "=", value)
		response, err := e.client.Txn(e.ctx).If(compare.WithPrefix()).Commit()
		e.ok(err)
		equal(e, "range compare with "+value, response.Succeeded, want)
	}
}

func TestTxnBranchesAndOrder(t *testing.T) {
	e := setup(t)
	before := e.put("old", "1").Header.Revision
	response, err := e.client.Txn(e.ctx).
		If(clientv3.Compare(clientv3.Version(e.key("new")), "=", 0)).
		Then(
			clientv3.OpPut(e.key("new"), "2"),
			clientv3.OpGet(e.key("new")),
			clientv3.OpDelete(e.key("old"), clientv3.WithPrevKV()),
			clientv3.OpGet(e.prefix, clientv3.WithPrefix()),
			clientv3.OpGet(e.key("old"), clientv3.WithRev(before)),
		).
		Else(clientv3.OpPut(e.key("wrong"), "")).
		Commit()
	e.ok(err)
	equal(e, "succeeded", response.Succeeded, true)
	equal(e, "one revision", response.Header.Revision, before+1)
	equal(e, "responses", len(response.Responses), 5)
	kv := response.Responses[1].GetResponseRange().Kvs[0]
	equal(e, "reads its own write", string(kv.Value), "2")
	equal(e, "revision of the write", kv.ModRevision, before+1)
	deleted := response.Responses[2].GetResponseDeleteRange()
	equal(e, "deleted", deleted.Deleted, 1)
	equal(e, "previous", string(deleted.PrevKvs[0].Value), "1")
	equal(e, "after the delete", response.Responses[3].GetResponseRange().Count, 1)
	equal(e, "history inside", response.Responses[4].GetResponseRange().Count, 1)

	response, err = e.client.Txn(e.ctx).
		If(clientv3.Compare(clientv3.Version(e.key("new")), "=", 0)).
		Then(clientv3.OpPut(e.key("wrong"), "")).
		Else(clientv3.OpGet(e.key("new"))).
		Commit()
	e.ok(err)
	equal(e, "failed", response.Succeeded, false)
	equal(e, "else ran", response.Responses[0].GetResponseRange().Count, 1)
	equal(e, "reading changes nothing", response.Header.Revision, before+1)
	equal(e, "not written", e.get("wrong").Count, 0)
}

func TestTxnNested(t *testing.T) {
	e := setup(t)
	e.put("a", "1")
	inner := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Value(e.key("a")), "=", "1")},
		[]clientv3.Op{clientv3.OpPut(e.key("inner"), "then")},
		[]clientv3.Op{clientv3.OpPut(e.key("inner"), "else")},
	)
	response, err := e.client.Txn(e.ctx).
		Then(clientv3.OpPut(e.key("outer"), ""), clientv3.OpTxn(nil, []clientv3.Op{inner}, nil)).
		Commit()
	e.ok(err)
	deep := response.Responses[1].GetResponseTxn().Responses[0].GetResponseTxn()
	equal(e, "inner succeeded", deep.Succeeded, true)
	equal(e, "inner wrote", string(e.get("inner").Kvs[0].Value), "then")
	equal(e, "same revision", e.get("inner").Kvs[0].ModRevision, e.get("outer").Kvs[0].ModRevision)
}

func TestTxnRefused(t *testing.T) {
	e := setup(t)
	put := clientv3.OpPut(e.key("a"), "")
	commit := func(ops ...clientv3.Op) error {
		_, err := e.client.Txn(e.ctx).Then(ops...).Commit()
		return err
	}
	e.fails("two puts", commit(put, put), rpctypes.ErrDuplicateKey)
	e.fails("put in a deleted range", commit(put, clientv3.OpDelete(e.prefix, clientv3.WithPrefix())), rpctypes.ErrDuplicateKey)
	e.fails("put and nested put", commit(put, clientv3.OpTxn(nil, []clientv3.Op{put}, nil)), rpctypes.ErrDuplicateKey)
	both := clientv3.OpTxn(nil, []clientv3.Op{put}, []clientv3.Op{put})
	e.ok(commit(both))

	many := make([]clientv3.Op, 129)
	for i := range many {
		many[i] = clientv3.OpPut(e.key(fmt.Sprintf("many%d", i)), "")
	}
	e.fails("129 operations", commit(many...), rpctypes.ErrTooManyOps)
	e.ok(commit(many[:128]...))

	before := e.get("a").Header.Revision
	e.fails("empty key", commit(clientv3.OpPut("", "")), rpctypes.ErrEmptyKey)
	e.fails("future read", commit(clientv3.OpPut(e.key("b"), ""), clientv3.OpGet(e.key("a"), clientv3.WithRev(before+1000))), rpctypes.ErrFutureRev)
	e.fails("unknown lease", commit(clientv3.OpPut(e.key("b"), ""), clientv3.OpPut(e.key("c"), "", clientv3.WithLease(0x7777))), rpctypes.ErrLeaseNotFound)
	e.fails("nothing to keep", commit(clientv3.OpPut(e.key("c"), "", clientv3.WithIgnoreValue())), rpctypes.ErrKeyNotFound)
	equal(e, "refused transactions change nothing", e.get("a").Header.Revision, before)
	equal(e, "no part of them was written", e.get("b").Count, 0)

	_, err := e.rawKV().Txn(e.ctx, &pb.TxnRequest{Compare: []*pb.Compare{{}}})
	equal(e, "compare without key is refused", err != nil, true)
}
