package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// random makes requests. All of them follow from the seed and from what the first server answered.
type random struct {
	*rand.Rand
}

func newRandom(seed int64) *random { return &random{rand.New(rand.NewSource(seed))} }

// oneIn is true once in n times.
func (r *random) oneIn(n int) bool { return r.Intn(n) == 0 }

// pick chooses one of several.
func pick[T any](r *random, from ...T) T { return from[r.Intn(len(from))] }

// keys are few, so that operations meet; some are no text.
func (r *random) key() []byte {
	switch r.Intn(20) {
	case 0:
		return []byte{0}
	case 1:
		return []byte{0xff, 0xfe, byte(r.Intn(3))}
	case 2:
		return bytes.Repeat([]byte("long"), 30)
	}
	return fmt.Appendf(nil, "%s/%02d", pick(r, "a", "b", "c"), r.Intn(15))
}

// anyKey is now and then no key at all.
func (r *random) anyKey() []byte {
	if r.oneIn(40) {
		return nil
	}
	return r.key()
}

// end of a range: none, all, a prefix, another key (above or below), or the key itself.
func (r *random) end(key []byte) []byte {
	switch r.Intn(8) {
	case 0, 1, 2:
		return nil
	case 3:
		return []byte{0}
	case 4:
		if len(key) > 0 {
			end := bytes.Clone(key[:1])
			end[0]++
			return end
		}
		return []byte{1}
	case 5:
		return bytes.Clone(key)
	}
	return r.key()
}

func (r *random) value() []byte {
	switch r.Intn(12) {
	case 0:
		return nil
	case 1:
		return bytes.Repeat([]byte{byte(r.Intn(256))}, 1+r.Intn(20_000))
	case 2:
		return []byte{0, 0xff, 0x80}
	}
	return fmt.Appendf(nil, "v%d", r.Intn(50))
}

// leaseID is one of a small pool, or none, or one that is never granted.
func (r *random) leaseID() int64 {
	return pick[int64](r, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, -7, math.MaxInt64, 999)
}

// revision is one of the past, the present, the future or nonsense; mostly 0.
func (d *differential) anyRevision() int64 {
	r := d.random
	switch r.Intn(16) {
	case 0:
		return d.revision
	case 1:
		return d.revision + 1 + int64(r.Intn(3))
	case 2:
		return pick[int64](r, -1, math.MinInt64, math.MaxInt64, 1)
	case 3:
		return d.compacted + int64(r.Intn(3)) - 1
	case 4, 5, 6, 7:
		return d.compacted + int64(r.Intn(int(d.revision-d.compacted)+1))
	}
	return 0
}

func (d *differential) putRequest() *pb.PutRequest {
	r := d.random
	request := &pb.PutRequest{Key: r.anyKey(), Value: r.value(), Lease: r.leaseID(), PrevKv: r.oneIn(3)}
	if r.oneIn(3) {
		request.Lease = 0
	}
	if r.oneIn(10) {
		request.IgnoreValue = true
		if !r.oneIn(3) {
			request.Value = nil
		}
	}
	if r.oneIn(10) {
		request.IgnoreLease = true
		if !r.oneIn(3) {
			request.Lease = 0
		}
	}
	return request
}

func (d *differential) rangeRequest() *pb.RangeRequest {
	r := d.random
	key := r.anyKey()
	request := &pb.RangeRequest{Key: key, RangeEnd: r.end(key), Revision: d.anyRevision(), Serializable: r.oneIn(4)}
	if r.oneIn(3) {
		request.Limit = pick(r, int64(1), 2, 3, 5, 10, 1000, -1, math.MaxInt64, math.MinInt64)
	}
	if r.oneIn(2) {
		request.SortOrder = pb.RangeRequest_SortOrder(r.Intn(3))
		request.SortTarget = pb.RangeRequest_SortTarget(r.Intn(5))
	}
	if r.oneIn(40) {
		request.SortOrder = pb.RangeRequest_SortOrder(pick(r, 3, -1, 1000))
	}
	if r.oneIn(40) {
		request.SortTarget = pb.RangeRequest_SortTarget(pick(r, 5, -1, 1000))
	}
	request.KeysOnly = r.oneIn(6)
	request.CountOnly = r.oneIn(8)
	bound := func() int64 {
		if !r.oneIn(8) {
			return 0
		}
		return pick(r, 1+int64(r.Intn(int(d.revision)+2)), -5, math.MaxInt64)
	}
	request.MinModRevision, request.MaxModRevision = bound(), bound()
	request.MinCreateRevision, request.MaxCreateRevision = bound(), bound()
	return request
}

func (d *differential) deleteRequest() *pb.DeleteRangeRequest {
	r := d.random
	request := &pb.DeleteRangeRequest{Key: r.anyKey(), PrevKv: r.oneIn(2)}
	switch r.Intn(12) {
	case 0:
		request.RangeEnd = r.end(request.Key)
	case 1, 2:
		request.RangeEnd = r.key()
	case 3:
		// Two neighbours at most.
		request.RangeEnd = append(bytes.Clone(request.Key), 0xff)
	}
	return request
}

func (d *differential) compareOf() *pb.Compare {
	r := d.random
	c := &pb.Compare{
		Result: pb.Compare_CompareResult(r.Intn(4)),
		Target: pb.Compare_CompareTarget(r.Intn(5)),
		Key:    r.key(),
	}
	if r.oneIn(5) {
		c.RangeEnd = r.end(c.Key)
	}
	number := pick(r, 0, 1, 2, d.revision, int64(r.Intn(int(d.revision)+1)), -1)
	kind := int(c.Target)
	if r.oneIn(25) {
		kind = r.Intn(6)
	}
	switch kind {
	case 0:
		c.TargetUnion = &pb.Compare_Version{Version: number}
	case 1:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: number}
	case 2:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: number}
	case 3:
		c.TargetUnion = &pb.Compare_Value{Value: r.value()}
	case 4:
		c.TargetUnion = &pb.Compare_Lease{Lease: r.leaseID()}
	}
	if r.oneIn(60) {
		c.Key = nil
	}
	if r.oneIn(60) {
		c.Result = pb.Compare_CompareResult(pick(r, 4, 77))
	}
	if r.oneIn(60) {
		c.Target = pb.Compare_CompareTarget(pick(r, 5, 77))
	}
	return c
}

func (d *differential) txnRequest(depth int) *pb.TxnRequest {
	r := d.random
	request := &pb.TxnRequest{}
	for range r.Intn(3) {
		request.Compare = append(request.Compare, d.compareOf())
	}
	// Keys of one branch are mostly kept apart: what is refused as a whole tests little.
	request.Success = d.txnOps(depth)
	if !r.oneIn(3) {
		request.Failure = d.txnOps(depth)
	}
	return request
}

func (d *differential) txnOps(depth int) []*pb.RequestOp {
	r := d.random
	var ops []*pb.RequestOp
	careful := !r.oneIn(6)
	put := map[string]bool{}
	for range r.Intn(5) {
		op := &pb.RequestOp{}
		switch kind := r.Intn(10); {
		case kind < 4:
			request := d.putRequest()
			if careful && (put[string(request.Key)] || len(request.Key) == 0) {
				continue
			}
			put[string(request.Key)] = true
			if careful {
				request.IgnoreLease, request.IgnoreValue, request.Lease = false, false, 0
			}
			op.Request = &pb.RequestOp_RequestPut{RequestPut: request}
		case kind < 7:
			request := d.rangeRequest()
			if careful {
				request.Revision = 0
				request.SortOrder %= 3
				request.SortTarget %= 5
			}
			op.Request = &pb.RequestOp_RequestRange{RequestRange: request}
		case kind == 7:
			request := d.deleteRequest()
			if careful {
				request.RangeEnd = nil
				if put[string(request.Key)] {
					continue
				}
			}
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: request}
		case kind == 8 && depth > 0:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: d.txnRequest(depth - 1)}
		case kind == 9 && r.oneIn(10):
			// An operation that asks for nothing.
		default:
			continue
		}
		ops = append(ops, op)
	}
	return ops
}

// deepTxn nests transactions; the innermost puts.
func deepTxn(depth int, key []byte) *pb.TxnRequest {
	inner := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: []byte("deep")}}}
	for range depth {
		inner = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: []*pb.RequestOp{inner}}}}
	}
	return &pb.TxnRequest{Success: []*pb.RequestOp{inner}}
}
