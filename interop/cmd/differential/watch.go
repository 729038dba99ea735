package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// codeOnly drops the text of an error.
func codeOnly(err error) error { return status.Error(status.Code(err), "") }

// watchStep watches history, what has been compacted, or the future. These are kept apart because a server says that a
// stream has caught up only when none of its watches waits for the future or was ended by a compaction.
func (d *differential) watchStep() {
	switch n := d.random.Intn(10); {
	case n == 0 && d.compacted > 1:
		d.watchCompacted()
	case n == 1:
		d.watchFuture()
	default:
		d.watchHistory()
	}
}

// watchHistory opens a stream with a few watches, lets it catch up, and compares all that came: answers to creates, events
// of each watch in order, and endings. How events are spread over responses is the server's own business.
func (d *differential) watchHistory() {
	r := d.random
	script := watchScript{progress: true}
	for range 1 + r.Intn(4) {
		script.creates = append(script.creates, d.watchRequest())
	}
	// A stream none of whose watches stands is never told of progress.
	script.creates = append(script.creates, &pb.WatchCreateRequest{Key: []byte("quiet")})
	if r.oneIn(4) {
		script.cancels = append(script.cancels, 77)
	}
	d.watchBoth("watch", script, func() {})
}

// watchCompacted starts below the compaction; the server must end the watch and say why.
func (d *differential) watchCompacted() {
	request := d.watchRequest()
	if bytes.Compare(request.RangeEnd, request.Key) <= 0 && !bytes.Equal(request.RangeEnd, []byte{0}) {
		// A watch of nothing would be refused at once.
		request.RangeEnd = nil
	}
	request.StartRevision = pick(d.random, 1, d.compacted-1, max(1, d.compacted/2))
	if request.StartRevision >= d.compacted {
		request.StartRevision = 1
	}
	d.watchBoth("watch-compacted", watchScript{creates: []*pb.WatchCreateRequest{request}, ends: 1}, func() {})
}

// watchFuture starts at the revision after the next; of two puts only the second may arrive.
func (d *differential) watchFuture() {
	key := d.random.key()
	script := watchScript{
		creates: []*pb.WatchCreateRequest{
			{Key: key, StartRevision: d.revision + 2, PrevKv: d.random.oneIn(2)},
			{Key: key, StartRevision: math.MaxInt64},
		},
		events: 1,
	}
	d.watchBoth("watch-future", script, func() {
		d.put(&pb.PutRequest{Key: key, Value: []byte("too early")})
		d.put(&pb.PutRequest{Key: key, Value: []byte("in time")})
	})
}

func (d *differential) watchRequest() *pb.WatchCreateRequest {
	r := d.random
	key := r.anyKey()
	request := &pb.WatchCreateRequest{Key: key, RangeEnd: r.end(key), PrevKv: r.oneIn(3), Fragment: r.oneIn(5)}
	if !r.oneIn(4) {
		request.RangeEnd = []byte{0}
	}
	oldest := max(d.compacted, 1)
	request.StartRevision = pick(r, 0, oldest, oldest+1, d.revision-5, d.revision, oldest+int64(r.Intn(int(d.revision-oldest)+1)))
	if request.StartRevision != 0 {
		request.StartRevision = min(max(request.StartRevision, oldest), d.revision)
	}
	if r.oneIn(4) {
		request.Filters = append(request.Filters, pb.WatchCreateRequest_FilterType(r.Intn(2)))
	}
	if r.oneIn(20) {
		request.Filters = append(request.Filters, pb.WatchCreateRequest_FilterType(9))
	}
	if r.oneIn(3) {
		request.WatchId = pick[int64](r, 1, 2, 5)
	}
	return request
}

// watchScript says what to do with a stream, and when enough has come.
type watchScript struct {
	creates []*pb.WatchCreateRequest
	// cancels are ids to cancel before anything is created.
	cancels []int64
	// ends and events are how many to wait for.
	ends, events int
	// progress asks for progress, and waits for the answer.
	progress bool
}

func (s watchScript) String() string {
	var texts []string
	for _, create := range s.creates {
		texts = append(texts, "["+describe(create)+"]")
	}
	if len(s.cancels) > 0 {
		texts = append(texts, fmt.Sprintf("cancel %v", s.cancels))
	}
	return strings.Join(texts, " ")
}

// watchBoth carries out a script at both servers; between runs once all watches stand.
func (d *differential) watchBoth(kind string, script watchScript, between func()) {
	d.sent++
	d.kinds[kind]++
	if d.verbose {
		fmt.Printf("%d %s %v\n", d.sent, kind, script)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var watched [2]*watched
	fail := func(s *side, err error) {
		d.differences = append(d.differences, fmt.Sprintf("operation %d, %s: server %s: %v, after %v", d.sent, kind, s.name, err, script))
	}
	for i, s := range d.sides {
		var err error
		if watched[i], err = openWatch(ctx, s, script); err != nil {
			fail(s, err)
			return
		}
	}
	between()
	for i, s := range d.sides {
		if err := watched[i].finish(ctx, script); err != nil {
			fail(s, err)
			return
		}
	}
	names := map[string]bool{}
	for _, one := range watched {
		for name := range one.seen {
			names[name] = true
		}
	}
	for _, name := range sortedKeys(names) {
		var answers [2]answer
		for i := range watched {
			answers[i] = answerOf(&pb.WatchResponse{CancelReason: "nothing came"}, nil)
			if message := watched[i].seen[name]; message != nil {
				answers[i] = answerOf(message, nil)
			}
		}
		d.compare(kind, fmt.Sprintf("%s of %v", name, script), nil, answers)
	}
}

func sortedKeys(names map[string]bool) []string {
	var ordered []string
	for name := range names {
		ordered = append(ordered, name)
	}
	sort.Strings(ordered)
	return ordered
}

// watched is one open stream and what it gave, by name.
type watched struct {
	stream   pb.Watch_WatchClient
	received chan *pb.WatchResponse
	failed   chan error
	seen     map[string]proto.Message
	all      map[int64]*pb.WatchResponse

	ends, events int
	progressed   bool
}

func openWatch(ctx context.Context, s *side, script watchScript) (*watched, error) {
	stream, err := s.watch.Watch(ctx)
	if err != nil {
		return nil, err
	}
	w := &watched{
		stream: stream, received: make(chan *pb.WatchResponse), failed: make(chan error, 1),
		seen: map[string]proto.Message{}, all: map[int64]*pb.WatchResponse{},
	}
	go w.receive(ctx)
	for _, id := range script.cancels {
		cancel := &pb.WatchCancelRequest{WatchId: id}
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}}); err != nil {
			return nil, err
		}
	}
	for i, create := range script.creates {
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
			return nil, err
		}
		// Creates are answered in order, between the events of watches before.
		for created := false; !created; {
			select {
			case response := <-w.received:
				created = response.Created
				w.take(response, fmt.Sprintf("answer to create %d", i))
			case err := <-w.failed:
				return nil, err
			}
		}
	}
	return w, nil
}

func (w *watched) receive(ctx context.Context) {
	for {
		response, err := w.stream.Recv()
		if err != nil {
			w.failed <- err
			return
		}
		select {
		case w.received <- response:
		case <-ctx.Done():
			return
		}
	}
}

func (w *watched) take(response *pb.WatchResponse, created string) {
	mask(nil, response)
	switch {
	case response.Created:
		w.seen[created] = response
	case response.Canceled:
		w.ends++
		w.seen[fmt.Sprintf("end of watch %d", response.WatchId)] = response
	case response.WatchId == -1:
		w.progressed = true
		w.seen["progress"] = response
	default:
		w.events += len(response.Events)
		all := w.all[response.WatchId]
		if all == nil {
			all = &pb.WatchResponse{}
			w.all[response.WatchId] = all
			w.seen[fmt.Sprintf("events of watch %d", response.WatchId)] = all
		}
		all.Events = append(all.Events, response.Events...)
	}
}

// finish takes responses until the script is done.
func (w *watched) finish(ctx context.Context, script watchScript) error {
	defer func() { _ = w.stream.CloseSend() }()
	for w.ends < script.ends || w.events < script.events || script.progress && !w.progressed {
		var again <-chan time.Time
		if script.progress {
			// Not answered before all watches have caught up, and then forgotten: ask again and again.
			request := &pb.WatchProgressRequest{}
			if err := w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: request}}); err != nil {
				return err
			}
			again = time.After(20 * time.Millisecond)
		}
		for waiting := true; waiting; {
			select {
			case response := <-w.received:
				w.take(response, "second answer to a create")
				waiting = again != nil && !w.progressed
			case <-again:
				waiting = false
			case err := <-w.failed:
				return err
			case <-ctx.Done():
				return errors.New("the watch did not come to its end")
			}
		}
	}
	return nil
}
