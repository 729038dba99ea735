package main

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// answer is what one server said.
type answer struct {
	message proto.Message
	code    codes.Code
	text    string
}

func answerOf(message proto.Message, err error) answer {
	if err != nil {
		s := status.Convert(err)
		return answer{nil, s.Code(), s.Message()}
	}
	return answer{message, codes.OK, ""}
}

func (a answer) String() string {
	if a.code != codes.OK {
		return fmt.Sprintf("%v %q", a.code, a.text)
	}
	text := prototext.MarshalOptions{}.Format(a.message)
	// The library varies its spaces on purpose.
	text = strings.Join(strings.Fields(text), " ")
	return text
}

// excerpts shows two texts where they part.
func excerpts(a, b string) (string, string) {
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	from := max(same-300, 0)
	cut := func(text string) string {
		out := text[min(from, len(text)):min(same+300, len(text))]
		if from > 0 {
			out = "..." + out
		}
		if same+300 < len(text) {
			out += "..."
		}
		return out
	}
	return cut(a), cut(b)
}

func (a answer) equal(b answer) bool {
	if a.code != b.code || a.text != b.text {
		return false
	}
	return a.message == nil || proto.Equal(a.message, b.message)
}

// difference is a known one. It tells whether it alone explains two answers that are not equal; it may change them, for
// another name to explain the rest.
type difference struct {
	about string
	hides func(request proto.Message, kind string, a, b *answer) bool
}

var known = map[string]difference{
	"keys-only-lease": {"3.7 answers keys_only with lease 0, 3.6 with the lease", func(_ proto.Message, _ string, a, b *answer) bool {
		for _, one := range []*answer{a, b} {
			eachRange(one.message, func(response *pb.RangeResponse) {
				for _, kv := range response.Kvs {
					if len(kv.Value) == 0 {
						kv.Lease = 0
					}
				}
			})
		}
		return a.equal(*b)
	}},
	"range-stream": {"RangeStream exists from 3.7", func(_ proto.Message, kind string, a, b *answer) bool {
		return kind == "range-stream" && (a.code == codes.Unimplemented || b.code == codes.Unimplemented)
	}},
	"txn-depth": {"decoders have different limits for nested messages", func(_ proto.Message, kind string, a, b *answer) bool {
		return kind == "txn-deep"
	}},
	"oversize-text": {"the transport words its size limit in its own way", func(_ proto.Message, kind string, a, b *answer) bool {
		return kind == "oversize" && a.code == b.code
	}},
	"check-order": {"a put that names an unknown lease and keeps the value of an absent key is wrong twice: 3.6 says the one, 3.7 the other", func(_ proto.Message, kind string, a, b *answer) bool {
		twice := func(x *answer) bool {
			return x.text == "etcdserver: key not found" || x.text == "etcdserver: requested lease not found"
		}
		return twice(a) && twice(b)
	}},
	"not-yet-supported": {"one of the servers says by name that it does not have this yet", func(_ proto.Message, kind string, a, b *answer) bool {
		refused := func(x *answer) bool {
			return x.code == codes.Unimplemented && strings.HasPrefix(x.text, "not yet supported: ")
		}
		return refused(a) != refused(b)
	}},
	"malformed-code": {"what becomes of bytes that are no message", func(_ proto.Message, kind string, a, b *answer) bool {
		return kind == "malformed" && a.code != codes.OK && b.code != codes.OK
	}},
}

func knownNames() []string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ask sends one request to both servers and compares the answers.
func (d *differential) ask(kind string, request proto.Message, call func(ctx context.Context, s *side) (proto.Message, error)) [2]answer {
	d.sent++
	d.kinds[kind]++
	if d.verbose {
		fmt.Printf("%d %s %s\n", d.sent, kind, describe(request))
	}
	var answers [2]answer
	for i, s := range d.sides {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		answers[i] = answerOf(call(ctx, s))
		cancel()
		mask(request, answers[i].message)
	}
	d.compare(kind, describe(request), request, answers)
	return answers
}

func (d *differential) compare(kind, what string, request proto.Message, answers [2]answer) {
	a, b := answers[0], answers[1]
	if a.equal(b) {
		return
	}
	shownA, shownB := excerpts(a.String(), b.String())
	for _, name := range knownNames() {
		if d.allowed[name] && known[name].hides(request, kind, &a, &b) {
			d.passed[name]++
			return
		}
	}
	d.differences = append(d.differences, fmt.Sprintf("operation %d, %s: %s\n  a: %s\n  b: %s", d.sent, kind, what, shownA, shownB))
}

func describe(request proto.Message) string {
	if request == nil {
		return ""
	}
	text := strings.Join(strings.Fields(prototext.Format(request)), " ")
	if len(text) > 800 {
		text = text[:800] + "..."
	}
	return text
}

// mask removes from a response what two servers cannot agree on.
func mask(request, response proto.Message) {
	if response == nil {
		return
	}
	if headed, ok := response.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		if header := headed.GetHeader(); header != nil {
			header.ClusterId, header.MemberId, header.RaftTerm = 0, 0, 0
		}
	}
	switch response := response.(type) {
	case *pb.RangeResponse:
		if request, ok := request.(*pb.RangeRequest); ok {
			settleOrder(request, response)
		}
	case *pb.TxnResponse:
		if request, ok := request.(*pb.TxnRequest); ok {
			maskTxn(request, response)
		}
	case *pb.LeaseTimeToLiveResponse:
		if response.TTL > 0 {
			response.TTL = 1
		}
		sort.Slice(response.Keys, func(i, j int) bool { return bytes.Compare(response.Keys[i], response.Keys[j]) < 0 })
	case *pb.LeaseLeasesResponse:
		sort.Slice(response.Leases, func(i, j int) bool { return response.Leases[i].ID < response.Leases[j].ID })
	}
}

func maskTxn(request *pb.TxnRequest, response *pb.TxnResponse) {
	ops := request.Failure
	if response.Succeeded {
		ops = request.Success
	}
	for i, op := range response.Responses {
		if i >= len(ops) {
			return
		}
		if inner := op.GetResponseRange(); inner != nil && ops[i].GetRequestRange() != nil {
			settleOrder(ops[i].GetRequestRange(), inner)
		}
		if inner := op.GetResponseTxn(); inner != nil && ops[i].GetRequestTxn() != nil {
			maskTxn(ops[i].GetRequestTxn(), inner)
		}
	}
}

// settleOrder gives pairs that the sort leaves in any order the order of their keys, and forgets which of them a limit cut.
func settleOrder(request *pb.RangeRequest, response *pb.RangeResponse) {
	target := request.SortTarget
	if target == pb.RangeRequest_KEY {
		return
	}
	sortedBy := func(kv *mvccpb.KeyValue) string {
		switch target {
		case pb.RangeRequest_VERSION:
			return fmt.Sprint(kv.Version)
		case pb.RangeRequest_CREATE:
			return fmt.Sprint(kv.CreateRevision)
		case pb.RangeRequest_MOD:
			return fmt.Sprint(kv.ModRevision)
		case pb.RangeRequest_VALUE:
			if request.KeysOnly {
				return "unknown"
			}
			return string(kv.Value)
		}
		return ""
	}
	kvs := response.Kvs
	for start := 0; start < len(kvs); {
		end := start + 1
		for end < len(kvs) && sortedBy(kvs[end]) == sortedBy(kvs[start]) {
			end++
		}
		group := kvs[start:end]
		if end == len(kvs) && response.More {
			for i := range group {
				group[i] = &mvccpb.KeyValue{Value: []byte("one of several")}
			}
		}
		sort.Slice(group, func(i, j int) bool { return bytes.Compare(group[i].Key, group[j].Key) < 0 })
		start = end
	}
}

// eachRange visits the range responses in a response.
func eachRange(message proto.Message, visit func(*pb.RangeResponse)) {
	switch message := message.(type) {
	case *pb.RangeResponse:
		visit(message)
	case *pb.TxnResponse:
		for _, op := range message.Responses {
			if inner := op.GetResponseRange(); inner != nil {
				visit(inner)
			}
			if inner := op.GetResponseTxn(); inner != nil {
				eachRange(inner, visit)
			}
		}
	}
}
