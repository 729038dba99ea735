package interop

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
)

func (e *env) session(ttl int) *concurrency.Session {
	e.Helper()
	session, err := concurrency.NewSession(e.client, concurrency.WithTTL(ttl))
	e.ok(err)
	e.Cleanup(func() { session.Close() })
	return session
}

func TestMutex(t *testing.T) {
	e := setup(t)
	var holders, worst int
	var guard sync.Mutex
	var group sync.WaitGroup
	for range 5 {
		mutex := concurrency.NewMutex(e.session(30), e.key("lock"))
		group.Add(1)
		go func() {
			defer group.Done()
			for range 5 {
				if err := mutex.Lock(e.ctx); err != nil {
					t.Error(err)
					return
				}
				guard.Lock()
				holders++
				worst = max(worst, holders)
				guard.Unlock()
				time.Sleep(time.Millisecond)
				guard.Lock()
				holders--
				guard.Unlock()
				if err := mutex.Unlock(e.ctx); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	equal(e, "most holders at once", worst, 1)

	one, two := concurrency.NewMutex(e.session(30), e.key("try")), concurrency.NewMutex(e.session(30), e.key("try"))
	e.ok(one.TryLock(e.ctx))
	e.fails("held by another", two.TryLock(e.ctx), concurrency.ErrLocked)
	e.ok(one.Unlock(e.ctx))
	e.ok(two.TryLock(e.ctx))
}

func TestMutexPassesOnWhenItsSessionEnds(t *testing.T) {
	e := setup(t)
	session := e.session(2)
	first := concurrency.NewMutex(session, e.key("lock"))
	e.ok(first.Lock(e.ctx))
	session.Orphan()
	second := concurrency.NewMutex(e.session(30), e.key("lock"))
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Second)
	defer cancel()
	e.ok(second.Lock(ctx))
}

func TestElection(t *testing.T) {
	e := setup(t)
	one := concurrency.NewElection(e.session(30), e.key("leader"))
	two := concurrency.NewElection(e.session(30), e.key("leader"))
	watcher := concurrency.NewElection(e.session(30), e.key("leader"))
	_, err := watcher.Leader(e.ctx)
	e.fails("nobody leads", err, concurrency.ErrElectionNoLeader)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	observed := watcher.Observe(ctx)
	sees := func(want string) {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case response := <-observed:
				if string(response.Kvs[0].Value) == want {
					return
				}
			case <-deadline:
				t.Fatalf("%s was never observed", want)
			}
		}
	}
	e.ok(one.Campaign(e.ctx, "one"))
	sees("one")
	e.ok(one.Proclaim(e.ctx, "one again"))
	sees("one again")
	won := make(chan error, 1)
	go func() { won <- two.Campaign(e.ctx, "two") }()
	select {
	case <-won:
		t.Fatal("two leaders")
	case <-time.After(200 * time.Millisecond):
	}
	e.ok(one.Resign(e.ctx))
	e.ok(<-won)
	sees("two")
	leader, err := watcher.Leader(e.ctx)
	e.ok(err)
	equal(e, "leader", string(leader.Kvs[0].Value), "two")
}

func TestSTM(t *testing.T) {
	e := setup(t)
	e.put("counter", "0")
	var group sync.WaitGroup
	for range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 10 {
				_, err := concurrency.NewSTM(e.client, func(stm concurrency.STM) error {
					n, err := strconv.Atoi(stm.Get(e.key("counter")))
					if err != nil {
						return err
					}
					stm.Put(e.key("counter"), strconv.Itoa(n+1))
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	equal(e, "no increment is lost", string(e.get("counter").Kvs[0].Value), "40")
}
