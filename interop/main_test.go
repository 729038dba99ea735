// Package interop holds tests that put the real Go client against a server.
//
// DOLMEN_ENDPOINTS (host:port, comma separated) names a running cluster. Or DOLMEN_SERVER names a server binary, which is
// then started on loopback with DOLMEN_MEMBERS members (1 unless set). With neither, the tests of a server are skipped.
package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dolmen.invalid/interop/internal/cluster"
)

// endpoints is empty when there is no server to test.
var endpoints []string

// progressInterval is the server's interval of watch progress notifications; 0 when not known.
var progressInterval time.Duration

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if list := os.Getenv("DOLMEN_ENDPOINTS"); list != "" {
		endpoints = strings.Split(list, ",")
		return m.Run()
	}
	binary := os.Getenv("DOLMEN_SERVER")
	if binary == "" {
		return m.Run()
	}
	members := 1
	if text := os.Getenv("DOLMEN_MEMBERS"); text != "" {
		var err error
		if members, err = strconv.Atoi(text); err != nil || members < 1 {
			fmt.Fprintf(os.Stderr, "DOLMEN_MEMBERS=%s is no number of members\n", text)
			return 2
		}
	}
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer os.RemoveAll(dir)
	progressInterval = time.Second
	c, err := cluster.New(cluster.Config{
		Binary: binary, Members: members, Dir: dir,
		Flags: []string{"--watch-progress-notify-interval=1s"},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer c.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	endpoints = c.Endpoints()
	return m.Run()
}

// env is what each test starts with: a client, a context, and a prefix nobody else uses.
//
// The client speaks to one member, another for each test: what it wrote has been applied where it then watches.
type env struct {
	*testing.T
	client *clientv3.Client
	ctx    context.Context
	prefix string
}

func setup(t *testing.T) *env {
	t.Helper()
	if len(endpoints) == 0 {
		t.Skip("neither DOLMEN_ENDPOINTS nor DOLMEN_SERVER is set")
	}
	sum := 0
	for _, letter := range t.Name() {
		sum += int(letter)
	}
	client, err := cluster.Dial(endpoints[sum%len(endpoints)])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		cancel()
		client.Close()
	})
	return &env{t, client, ctx, fmt.Sprintf("%s/%d/", t.Name(), time.Now().UnixNano())}
}

func (e *env) key(name string) string { return e.prefix + name }

// ok ends the test when there is an error.
func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) put(name, value string, options ...clientv3.OpOption) *clientv3.PutResponse {
	e.Helper()
	response, err := e.client.Put(e.ctx, e.key(name), value, options...)
	e.ok(err)
	return response
}

func (e *env) get(name string, options ...clientv3.OpOption) *clientv3.GetResponse {
	e.Helper()
	response, err := e.client.Get(e.ctx, e.key(name), options...)
	e.ok(err)
	return response
}

// all reads everything under the test's prefix.
func (e *env) all(options ...clientv3.OpOption) *clientv3.GetResponse {
	e.Helper()
	return e.get("", append([]clientv3.OpOption{clientv3.WithPrefix()}, options...)...)
}

// names lists a response's keys without the prefix, joined by spaces.
func (e *env) names(response *clientv3.GetResponse) string {
	var all []string
	for _, kv := range response.Kvs {
		all = append(all, strings.TrimPrefix(string(kv.Key), e.prefix))
	}
	return strings.Join(all, " ")
}

func equal[T comparable](e *env, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// fails asks for one error exactly: the value the client library gives for it.
func (e *env) fails(what string, got, want error) {
	e.Helper()
	if !errors.Is(got, want) {
		e.Fatalf("%s: got error %v (%T), want %v", what, got, got, want)
	}
}

// failsWith asks for a gRPC status.
func (e *env) failsWith(what string, err error, code codes.Code, text string) {
	e.Helper()
	got := status.Convert(err)
	if err == nil || got.Code() != code || got.Message() != text {
		e.Fatalf("%s: got %v, want code %v, %q", what, err, code, text)
	}
}

// rawKV is the service below the client library, which checks some input before it is sent.
func (e *env) rawKV() pb.KVClient { return pb.NewKVClient(e.client.ActiveConnection()) }
