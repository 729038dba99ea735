package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// step sends one operation of a random kind, the common ones often.
func (d *differential) step() {
	switch n := d.random.Intn(1000); {
	case n < 330:
		d.put(d.putRequest())
	case n < 560:
		d.rangeOnce(d.rangeRequest())
	case n < 640:
		d.deleteRange(d.deleteRequest())
	case n < 790:
		d.txn("txn", d.txnRequest(3))
	case n < 860:
		d.leaseStep()
	case n < 885:
		d.compact()
	case n < 935:
		d.watchStep()
	case n < 955:
		d.rangeStream()
	case n < 970:
		d.malformed()
	case n < 980:
		d.maintenanceStep()
	case n < 985:
		d.oversize()
	case n < 990:
		d.bigTxn()
	default:
		d.checkpoint()
	}
}

func (d *differential) note(answers [2]answer) {
	headed, ok := answers[0].message.(interface{ GetHeader() *pb.ResponseHeader })
	if ok && headed.GetHeader().GetRevision() > d.revision {
		d.revision = headed.GetHeader().GetRevision()
	}
}

func (d *differential) put(request *pb.PutRequest) {
	d.note(d.ask("put", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.kv.Put(ctx, request) }))
}

func (d *differential) rangeOnce(request *pb.RangeRequest) {
	d.ask("range", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.kv.Range(ctx, request) })
}

func (d *differential) deleteRange(request *pb.DeleteRangeRequest) {
	d.note(d.ask("delete", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.kv.DeleteRange(ctx, request) }))
}

func (d *differential) txn(kind string, request *pb.TxnRequest) {
	d.note(d.ask(kind, request, func(ctx context.Context, s *side) (proto.Message, error) { return s.kv.Txn(ctx, request) }))
}

// bigTxn is at, or over, the limit of operations, or nested deeply.
func (d *differential) bigTxn() {
	switch d.random.Intn(3) {
	case 0:
		d.txn("txn", deepTxn(d.random.Intn(20), d.random.key()))
	case 1:
		d.txn("txn-deep", deepTxn(200, d.random.key()))
	default:
		request := &pb.TxnRequest{}
		for i := range pick(d.random, 127, 128, 129) {
			put := &pb.PutRequest{Key: fmt.Appendf(nil, "many/%03d", i), Value: []byte("m")}
			op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}
			if d.random.oneIn(2) {
				request.Success = append(request.Success, op)
			} else {
				op = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: []*pb.RequestOp{op}}}}
				request.Success = append(request.Success, op)
			}
		}
		d.txn("txn", request)
	}
}

// oversize is a request near the server's limits, or over them.
func (d *differential) oversize() {
	size := pick(d.random, 1572864-100, 1572864, 2<<20, 3<<20)
	request := &pb.PutRequest{Key: []byte("big"), Value: bytes.Repeat([]byte("x"), size)}
	summary := &pb.PutRequest{Key: fmt.Appendf(nil, "%d bytes", size)}
	d.note(d.ask("oversize", summary, func(ctx context.Context, s *side) (proto.Message, error) { return s.kv.Put(ctx, request) }))
}

func (d *differential) compact() {
	r := d.random
	request := &pb.CompactionRequest{Revision: d.anyRevision(), Physical: r.oneIn(2)}
	if r.oneIn(2) {
		// Leave some history to read.
		request.Revision = max(d.compacted, d.revision-int64(r.Intn(60)))
	}
	answers := d.ask("compact", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.kv.Compact(ctx, request) })
	if answers[0].code == codes.OK {
		d.compacted = max(d.compacted, request.Revision)
	}
}

func (d *differential) leaseStep() {
	r := d.random
	switch r.Intn(9) {
	case 0, 1, 2:
		id := r.leaseID()
		if id == 0 {
			id = 1
		}
		d.grant(&pb.LeaseGrantRequest{ID: id, TTL: pick[int64](r, 10_000, 20_000, 9_000_000_000)})
	case 3:
		d.grant(&pb.LeaseGrantRequest{ID: 2, TTL: pick[int64](r, 9_000_000_001, math.MaxInt64)})
	case 4:
		// These expire soon, so they go at once; nothing hangs on them.
		d.grant(&pb.LeaseGrantRequest{ID: 50, TTL: pick[int64](r, 0, -1, math.MinInt64, 1)})
		d.revoke(50)
	case 5:
		d.revoke(r.leaseID())
	case 6:
		request := &pb.LeaseTimeToLiveRequest{ID: r.leaseID(), Keys: r.oneIn(2)}
		d.ask("time-to-live", request, func(ctx context.Context, s *side) (proto.Message, error) {
			return s.lease.LeaseTimeToLive(ctx, request)
		})
	case 7:
		request := &pb.LeaseLeasesRequest{}
		d.ask("leases", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.lease.LeaseLeases(ctx, request) })
	case 8:
		d.keepAlive(&pb.LeaseKeepAliveRequest{ID: r.leaseID()})
	}
}

func (d *differential) grant(request *pb.LeaseGrantRequest) {
	d.ask("grant", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.lease.LeaseGrant(ctx, request) })
}

func (d *differential) revoke(id int64) {
	request := &pb.LeaseRevokeRequest{ID: id}
	d.note(d.ask("revoke", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.lease.LeaseRevoke(ctx, request) }))
}

func (d *differential) keepAlive(request *pb.LeaseKeepAliveRequest) {
	d.ask("keep-alive", request, func(ctx context.Context, s *side) (proto.Message, error) {
		stream, err := s.lease.LeaseKeepAlive(ctx)
		if err != nil {
			return nil, err
		}
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		response, err := stream.Recv()
		_ = stream.CloseSend()
		return response, err
	})
}

// rangeStream joins the chunks: where they are cut is the server's own business.
func (d *differential) rangeStream() {
	request := d.rangeRequest()
	if !d.random.oneIn(4) {
		request.SortOrder, request.SortTarget = 0, 0
		request.MinModRevision, request.MaxModRevision, request.MinCreateRevision, request.MaxCreateRevision = 0, 0, 0, 0
	}
	d.ask("range-stream", request, func(ctx context.Context, s *side) (proto.Message, error) {
		stream, err := s.kv.RangeStream(ctx, request)
		if err != nil {
			return nil, err
		}
		whole := &pb.RangeResponse{}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return whole, nil
			}
			if err != nil {
				return nil, err
			}
			proto.Merge(whole, part.GetRangeResponse())
		}
	})
}

func (d *differential) maintenanceStep() {
	r := d.random
	switch r.Intn(4) {
	case 0:
		request := &pb.HashKVRequest{Revision: d.anyRevision()}
		d.ask("hashkv", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.maintenance.HashKV(ctx, request) })
	case 1:
		request := &pb.MoveLeaderRequest{TargetID: 12345}
		d.ask("move-leader", request, func(ctx context.Context, s *side) (proto.Message, error) {
			return s.maintenance.MoveLeader(ctx, request)
		})
	case 2:
		request := &pb.AlarmRequest{Action: pb.AlarmRequest_GET, Alarm: pick(r, pb.AlarmType_NONE, pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT)}
		d.ask("alarm", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.maintenance.Alarm(ctx, request) })
	case 3:
		request := &pb.DowngradeRequest{Action: pick(r, pb.DowngradeRequest_VALIDATE, pb.DowngradeRequest_DowngradeAction(9)), Version: pick(r, "", "x.y", "3")}
		d.ask("downgrade", request, func(ctx context.Context, s *side) (proto.Message, error) {
			return s.maintenance.Downgrade(ctx, request)
		})
	}
}

// checkpoint compares the hash of everything, now and at some revision of the past.
func (d *differential) checkpoint() {
	for _, revision := range []int64{0, d.revision, d.compacted + int64(d.random.Intn(int(d.revision-d.compacted)+1))} {
		request := &pb.HashKVRequest{Revision: revision}
		d.ask("hashkv", request, func(ctx context.Context, s *side) (proto.Message, error) { return s.maintenance.HashKV(ctx, request) })
	}
}

// history compares the whole store at up to 50 revisions that can still be read.
func (d *differential) history() {
	from := max(d.compacted, 1)
	stride := max((d.revision-from)/50, 1)
	for revision := from; revision <= d.revision && len(d.differences) < shown; revision += stride {
		d.rangeOnce(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: revision})
	}
}

// rawCodec sends and takes bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(value any) ([]byte, error) { return value.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = bytes.Clone(data)
	return nil
}

// malformed sends bytes that are no request, or a request with more in it, or calls what does not exist. Servers word
// their refusals each in their own way, so of errors only the code counts.
func (d *differential) malformed() {
	r := d.random
	valid, err := proto.Marshal(&pb.RangeRequest{Key: r.key(), Limit: 3})
	if err != nil {
		panic(err)
	}
	method, body, what := "/etcdserverpb.KV/Range", bytes.Clone(valid), ""
	switch r.Intn(9) {
	case 0:
		what = "unknown method"
		method = pick(r, "/etcdserverpb.KV/Steal", "/etcdserverpb.Nothing/Range", "/no")
	case 1:
		what = "unknown fields"
		body = protowire.AppendTag(body, 900, protowire.BytesType)
		body = protowire.AppendBytes(body, []byte("more"))
		body = protowire.AppendTag(body, 901, protowire.Fixed32Type)
		body = protowire.AppendFixed32(body, 7)
	case 2:
		what = "an unknown group"
		body = protowire.AppendTag(body, 900, protowire.StartGroupType)
		body = protowire.AppendTag(body, 900, protowire.EndGroupType)
	case 3:
		what = "a group without end"
		body = protowire.AppendTag(body, 900, protowire.StartGroupType)
	case 4:
		what = "truncated"
		body = body[:len(body)-1-r.Intn(len(body)-1)]
	case 5:
		what = "wrong wire type"
		body = protowire.AppendTag(nil, 1, protowire.VarintType)
		body = protowire.AppendVarint(body, 3)
	case 6:
		what = "trailing bytes"
		body = append(body, 0xff, 0xff, 0xff)
	case 7:
		what = "field number 0"
		body = append(body, 0, 0)
	case 8:
		what = "twice the same field"
		body = protowire.AppendTag(body, 3, protowire.VarintType)
		body = protowire.AppendVarint(body, 1)
	}
	label := &pb.PutRequest{Key: []byte(what), Value: body}
	d.ask("malformed", label, func(ctx context.Context, s *side) (proto.Message, error) {
		var reply []byte
		if err := s.conn.Invoke(ctx, method, body, &reply, grpc.ForceCodec(rawCodec{})); err != nil {
			return nil, codeOnly(err)
		}
		response := &pb.RangeResponse{}
		return response, proto.Unmarshal(reply, response)
	})
}
