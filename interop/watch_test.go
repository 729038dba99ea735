package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"dolmen.invalid/interop/internal/cluster"
)

const patience = 10 * time.Second

// next takes one response from a watch; closed channels and silence fail the test.
func (e *env) next(watch clientv3.WatchChan) clientv3.WatchResponse {
	e.Helper()
	select {
	case response, open := <-watch:
		if !open {
			e.Fatal("watch channel closed")
		}
		return response
	case <-time.After(patience):
		e.Fatal("no watch response")
		panic("unreachable")
	}
}

// events takes responses until there are count events, and describes each as TYPE name=value@revision.
func (e *env) events(watch clientv3.WatchChan, count int) []string {
	e.Helper()
	var got []string
	for len(got) < count {
		response := e.next(watch)
		e.ok(response.Err())
		for _, event := range response.Events {
			name := strings.TrimPrefix(string(event.Kv.Key), e.prefix)
			got = append(got, fmt.Sprintf("%s %s=%s@%d", event.Type, name, event.Kv.Value, event.Kv.ModRevision))
		}
	}
	return got
}

func (e *env) silent(watch clientv3.WatchChan, wait time.Duration) {
	e.Helper()
	select {
	case response := <-watch:
		e.Fatalf("unexpected response %+v", response)
	case <-time.After(wait):
	}
}

func (e *env) delete(name string) int64 {
	e.Helper()
	response, err := e.client.Delete(e.ctx, e.key(name))
	e.ok(err)
	return response.Header.Revision
}

func TestWatchPresentAndPast(t *testing.T) {
	e := setup(t)
	watch := e.client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	equal(e, "created", e.next(watch).Created, true)
	r1 := e.put("a", "1").Header.Revision
	r2 := e.put("b", "2").Header.Revision
	r3 := e.delete("a")
	want := fmt.Sprintf("[PUT a=1@%d PUT b=2@%d DELETE a=@%d]", r1, r2, r3)
	equal(e, "live events", fmt.Sprint(e.events(watch, 3)), want)

	past := e.client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithRev(r1))
	equal(e, "events of the past", fmt.Sprint(e.events(past, 3)), want)
	r4 := e.put("c", "3").Header.Revision
	equal(e, "then the present", fmt.Sprint(e.events(past, 1)), fmt.Sprintf("[PUT c=3@%d]", r4))

	one := e.client.Watch(e.ctx, e.key("b"), clientv3.WithRev(r1))
	equal(e, "one key", fmt.Sprint(e.events(one, 1)), fmt.Sprintf("[PUT b=2@%d]", r2))
	half := e.client.Watch(e.ctx, e.key("a"), clientv3.WithRange(e.key("b")), clientv3.WithRev(r1))
	equal(e, "half open range", len(e.events(half, 2)), 2)
	e.silent(half, 50*time.Millisecond)
}

func TestWatchFuture(t *testing.T) {
	e := setup(t)
	now := e.put("a", "0").Header.Revision
	watch := e.client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithRev(now+3), clientv3.WithCreatedNotify())
	equal(e, "created", e.next(watch).Created, true)
	e.put("a", "1")
	e.put("a", "2")
	e.put("a", "3")
	equal(e, "only the future", fmt.Sprint(e.events(watch, 1)), fmt.Sprintf("[PUT a=3@%d]", now+3))
}

func TestWatchCompacted(t *testing.T) {
	e := setup(t)
	old := e.put("a", "1").Header.Revision
	e.put("a", "2")
	now := e.put("a", "3").Header.Revision
	_, err := e.client.Compact(e.ctx, now)
	e.ok(err)
	watch := e.client.Watch(e.ctx, e.key("a"), clientv3.WithRev(old))
	response := e.next(watch)
	e.fails("watch below the compaction", response.Err(), rpctypes.ErrCompacted)
	equal(e, "compact revision", response.CompactRevision, now)
	equal(e, "canceled", response.Canceled, true)
	if _, open := <-watch; open {
		t.Fatal("channel stays open after the end")
	}
	at := e.client.Watch(e.ctx, e.key("a"), clientv3.WithRev(now))
	equal(e, "watch at the compaction", fmt.Sprint(e.events(at, 1)), fmt.Sprintf("[PUT a=3@%d]", now))
}

func TestWatchPreviousPairs(t *testing.T) {
	e := setup(t)
	first := e.put("a", "1").Header.Revision
	e.put("a", "2")
	e.delete("a")
	e.put("a", "3")
	watch := e.client.Watch(e.ctx, e.key("a"), clientv3.WithPrevKV(), clientv3.WithRev(first))
	var previous []string
	var kinds []string
	for len(previous) < 4 {
		response := e.next(watch)
		e.ok(response.Err())
		for _, event := range response.Events {
			previous = append(previous, string(event.PrevKv.GetValue()))
			kinds = append(kinds, fmt.Sprint(event.IsCreate(), event.IsModify()))
		}
	}
	equal(e, "previous values", fmt.Sprint(previous), "[ 1 2 ]")
	equal(e, "create and modify", fmt.Sprint(kinds), "[true false false true false false true false]")
}

func TestWatchFilters(t *testing.T) {
	e := setup(t)
	first := e.put("a", "1").Header.Revision
	gone := e.delete("a")
	last := e.put("a", "2").Header.Revision
	deletes := e.client.Watch(e.ctx, e.key("a"), clientv3.WithFilterPut(), clientv3.WithRev(first))
	equal(e, "no puts", fmt.Sprint(e.events(deletes, 1)), fmt.Sprintf("[DELETE a=@%d]", gone))
	e.silent(deletes, 50*time.Millisecond)
	puts := e.client.Watch(e.ctx, e.key("a"), clientv3.WithFilterDelete(), clientv3.WithRev(first))
	equal(e, "no deletes", fmt.Sprint(e.events(puts, 2)), fmt.Sprintf("[PUT a=1@%d PUT a=2@%d]", first, last))
}

func TestWatchSeesATxnWhole(t *testing.T) {
	e := setup(t)
	watch := e.client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	e.next(watch)
	var ops []clientv3.Op
	for i := range 100 {
		ops = append(ops, clientv3.OpPut(e.key(fmt.Sprintf("%03d", 99-i)), "v"))
	}
	committed, err := e.client.Txn(e.ctx).Then(ops...).Commit()
	e.ok(err)
	response := e.next(watch)
	equal(e, "events in one response", len(response.Events), 100)
	for i, event := range response.Events {
		equal(e, "revision", event.Kv.ModRevision, committed.Header.Revision)
		equal(e, "order of the operations", string(event.Kv.Key), e.key(fmt.Sprintf("%03d", 99-i)))
	}
}

func TestWatchFragments(t *testing.T) {
	e := setup(t)
	// One revision with 5 MiB of events is more than one message may hold.
	big := strings.Repeat("v", 100<<10)
	lease, err := e.client.Grant(e.ctx, 600)
	e.ok(err)
	first := e.put("00", big, clientv3.WithLease(lease.ID)).Header.Revision
	for i := 1; i < 50; i++ {
		e.put(fmt.Sprintf("%02d", i), big, clientv3.WithLease(lease.ID))
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: e.client.Endpoints(), MaxCallRecvMsgSize: 2 << 20})
	e.ok(err)
	defer client.Close()
	// The client joins fragments; what arrives is whole although no message above 2 MiB was taken.
	watch := client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithRev(first))
	equal(e, "history in fragments", len(e.events(watch, 50)), 50)

	before := client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	e.next(before)
	_, err = e.client.Revoke(e.ctx, lease.ID)
	e.ok(err)
	count := 0
	for count < 50 {
		response := e.next(before)
		e.ok(response.Err())
		for _, event := range response.Events {
			equal(e, "order", string(event.Kv.Key), e.key(fmt.Sprintf("%02d", count)))
			equal(e, "previous value", len(event.PrevKv.GetValue()), len(big))
			count++
		}
	}
}

func TestWatchProgress(t *testing.T) {
	e := setup(t)
	now := e.put("a", "1").Header.Revision
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	watch := e.client.Watch(ctx, e.key("a"), clientv3.WithCreatedNotify())
	e.next(watch)
	e.ok(e.client.RequestProgress(ctx))
	response := e.next(watch)
	equal(e, "is progress", response.IsProgressNotify(), true)
	equal(e, "revision of a progress answer is not behind", response.Header.Revision >= now, true)

	if progressInterval == 0 {
		return
	}
	noted := e.client.Watch(ctx, e.key("a"), clientv3.WithProgressNotify())
	started := time.Now()
	response = e.next(noted)
	equal(e, "is progress", response.IsProgressNotify(), true)
	equal(e, "within reason", time.Since(started) < 5*progressInterval, true)
	after := e.put("b", "unwatched").Header.Revision
	for response.Header.Revision < after {
		response = e.next(noted)
		equal(e, "is progress", response.IsProgressNotify(), true)
	}
}

func TestWatchCancel(t *testing.T) {
	e := setup(t)
	ctx, cancel := context.WithCancel(e.ctx)
	watch := e.client.Watch(ctx, e.key("a"), clientv3.WithCreatedNotify())
	other := e.client.Watch(e.ctx, e.key("a"), clientv3.WithCreatedNotify())
	e.next(watch)
	e.next(other)
	cancel()
	for range watch {
	}
	e.put("a", "1")
	equal(e, "the other watch lives", len(e.events(other, 1)), 1)
}

func TestManyWatchersOfOneStream(t *testing.T) {
	e := setup(t)
	const count = 500
	var watches []clientv3.WatchChan
	for i := range count {
		watches = append(watches, e.client.Watch(e.ctx, e.key(fmt.Sprint(i%10)), clientv3.WithCreatedNotify()))
	}
	for _, watch := range watches {
		equal(e, "created", e.next(watch).Created, true)
	}
	for round := range 3 {
		for i := range 10 {
			e.put(fmt.Sprint(i), fmt.Sprint(round))
		}
	}
	for i, watch := range watches {
		for round, event := range e.events(watch, 3) {
			want := fmt.Sprintf("PUT %d=%d@", i%10, round)
			equal(e, "event", strings.HasPrefix(event, want), true)
		}
	}
}

func TestWatchResumesAfterTheConnection(t *testing.T) {
	e := setup(t)
	if len(endpoints) < 2 {
		t.Skip("resuming at another member needs two")
	}
	client, err := cluster.Dial(endpoints[0])
	e.ok(err)
	defer client.Close()
	watch := client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	e.next(watch)
	e.put("a", "1")
	e.events(watch, 1)
	client.SetEndpoints(endpoints[1])
	e.put("a", "2")
	e.put("a", "3")
	got := e.events(watch, 2)
	equal(e, "no gap, no repeat", strings.HasPrefix(got[0], "PUT a=2@") && strings.HasPrefix(got[1], "PUT a=3@"), true)
}

// The stream itself: chosen ids, an id used twice, cancels, and requests that mean nothing.
func TestWatchStream(t *testing.T) {
	e := setup(t)
	stream, err := pb.NewWatchClient(e.client.ActiveConnection()).Watch(e.ctx)
	e.ok(err)
	create := func(request *pb.WatchCreateRequest) *pb.WatchResponse {
		t.Helper()
		e.ok(stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}}))
		response, err := stream.Recv()
		e.ok(err)
		return response
	}
	key := []byte(e.key("a"))
	response := create(&pb.WatchCreateRequest{Key: key, WatchId: 7})
	equal(e, "id as asked", response.WatchId, 7)
	equal(e, "created", response.Created, true)
	equal(e, "first free id", create(&pb.WatchCreateRequest{Key: key}).WatchId, 0)
	response = create(&pb.WatchCreateRequest{Key: key, WatchId: 7})
	equal(e, "id twice: created", response.Created, true)
	equal(e, "id twice: canceled", response.Canceled, true)
	equal(e, "id twice: id", response.WatchId, -1)
	equal(e, "id twice: reason", response.CancelReason, "mvcc: duplicate watch ID provided on the WatchStream")

	// A cancel of an unknown id is not answered; the next answer belongs to the next request.
	cancel := func(id int64) {
		request := &pb.WatchCancelRequest{WatchId: id}
		e.ok(stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: request}}))
	}
	cancel(12345)
	cancel(7)
	response, err = stream.Recv()
	e.ok(err)
	equal(e, "canceled id", response.WatchId, 7)
	equal(e, "canceled", response.Canceled, true)
	e.put("a", "1")
	response, err = stream.Recv()
	e.ok(err)
	equal(e, "event of the other", response.WatchId, 0)
	equal(e, "id can be used again", create(&pb.WatchCreateRequest{Key: key, WatchId: 7}).WatchId, 7)
}
