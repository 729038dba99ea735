package interop

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

func TestLeaseGrantListAndRevoke(t *testing.T) {
	e := setup(t)
	lease, err := e.client.Grant(e.ctx, 600)
	e.ok(err)
	equal(e, "granted TTL", lease.TTL, 600)
	equal(e, "an id was chosen", lease.ID > 0, true)
	listed := func() bool {
		all, err := e.client.Leases(e.ctx)
		e.ok(err)
		for _, one := range all.Leases {
			if one.ID == lease.ID {
				return true
			}
		}
		return false
	}
	equal(e, "listed", listed(), true)
	e.put("b", "", clientv3.WithLease(lease.ID))
	before := e.put("a", "", clientv3.WithLease(lease.ID)).Header.Revision

	left, err := e.client.TimeToLive(e.ctx, lease.ID, clientv3.WithAttachedKeys())
	e.ok(err)
	equal(e, "granted", left.GrantedTTL, 600)
	equal(e, "left", left.TTL > 500 && left.TTL <= 600, true)
	equal(e, "attached keys", len(left.Keys), 2)

	revoked, err := e.client.Revoke(e.ctx, lease.ID)
	e.ok(err)
	equal(e, "one revision for both keys", revoked.Header.Revision, before+1)
	equal(e, "keys are gone", e.all().Count, 0)
	equal(e, "not listed", listed(), false)
	left, err = e.client.TimeToLive(e.ctx, lease.ID)
	e.ok(err)
	equal(e, "time to live of no lease", left.TTL, -1)
	_, err = e.client.Revoke(e.ctx, lease.ID)
	e.fails("revoke twice", err, rpctypes.ErrLeaseNotFound)
	_, err = e.client.KeepAliveOnce(e.ctx, lease.ID)
	e.fails("keep alive of no lease", err, rpctypes.ErrLeaseNotFound)
}

func TestLeaseIDs(t *testing.T) {
	e := setup(t)
	raw := pb.NewLeaseClient(e.client.ActiveConnection())
	id := time.Now().UnixNano()
	granted, err := raw.LeaseGrant(e.ctx, &pb.LeaseGrantRequest{ID: id, TTL: 600})
	e.ok(err)
	equal(e, "id as asked", granted.ID, id)
	_, err = raw.LeaseGrant(e.ctx, &pb.LeaseGrantRequest{ID: id, TTL: 600})
	e.failsWith("same id", err, codes.FailedPrecondition, "etcdserver: lease already exists")
	_, err = raw.LeaseRevoke(e.ctx, &pb.LeaseRevokeRequest{ID: id})
	e.ok(err)
	_, err = raw.LeaseGrant(e.ctx, &pb.LeaseGrantRequest{TTL: 9_000_000_001})
	e.failsWith("TTL too large", err, codes.OutOfRange, "etcdserver: too large lease TTL")
}

func TestLeaseMovesWithItsKey(t *testing.T) {
	e := setup(t)
	one, err := e.client.Grant(e.ctx, 600)
	e.ok(err)
	two, err := e.client.Grant(e.ctx, 600)
	e.ok(err)
	e.put("moved", "", clientv3.WithLease(one.ID))
	e.put("freed", "", clientv3.WithLease(one.ID))
	e.put("moved", "", clientv3.WithLease(two.ID))
	e.put("freed", "")
	_, err = e.client.Revoke(e.ctx, one.ID)
	e.ok(err)
	equal(e, "both stay", e.names(e.all()), "freed moved")
	_, err = e.client.Revoke(e.ctx, two.ID)
	e.ok(err)
	equal(e, "one stays", e.names(e.all()), "freed")
}

func TestLeaseExpires(t *testing.T) {
	e := setup(t)
	lease, err := e.client.Grant(e.ctx, 2)
	e.ok(err)
	put := e.put("a", "", clientv3.WithLease(lease.ID))
	watch := e.client.Watch(e.ctx, e.key("a"), clientv3.WithRev(put.Header.Revision+1))
	started := time.Now()
	select {
	case response := <-watch:
		e.ok(response.Err())
		equal(e, "delete event", response.Events[0].Type, clientv3.EventTypeDelete)
		if waited := time.Since(started); waited < 1500*time.Millisecond {
			t.Fatalf("expired after %v", waited)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a lease of 2 seconds did not expire in 20")
	}
	equal(e, "key is gone", e.all().Count, 0)
}

func TestLeaseKeepAlive(t *testing.T) {
	e := setup(t)
	lease, err := e.client.Grant(e.ctx, 2)
	e.ok(err)
	e.put("a", "", clientv3.WithLease(lease.ID))
	once, err := e.client.KeepAliveOnce(e.ctx, lease.ID)
	e.ok(err)
	equal(e, "TTL", once.TTL, 2)

	ctx, cancel := context.WithCancel(e.ctx)
	alive, err := e.client.KeepAlive(ctx, lease.ID)
	e.ok(err)
	deadline := time.After(5 * time.Second)
	answers := 0
	for waiting := true; waiting; {
		select {
		case response, open := <-alive:
			equal(e, "stream is open", open, true)
			equal(e, "id", response.ID, lease.ID)
			answers++
		case <-deadline:
			waiting = false
		}
	}
	equal(e, "several answers", answers >= 3, true)
	equal(e, "key outlived its TTL", e.all().Count, 1)
	cancel()
	_, err = e.client.Revoke(e.ctx, lease.ID)
	e.ok(err)
}
