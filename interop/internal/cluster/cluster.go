// Package cluster runs members of an etcd-compatible server as processes on loopback, and takes them down again.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Config says what to run.
type Config struct {
	// Binary is the server; it is started under the name etcd.
	Binary string
	// Members is how many, 1 or more.
	Members int
	// Dir holds data and logs. It must exist.
	Dir string
	// Flags are added to every member's command line.
	Flags []string
}

// Member is one server process and what it needs to start again.
type Member struct {
	// Client is the client URL without scheme: host:port.
	Client string
	// DataDir is the member's data directory.
	DataDir string
	// Log is the file that takes the process's output.
	Log string

	name    string
	peer    string
	command []string

	mu      sync.Mutex
	process *exec.Cmd
	done    chan struct{}
}

// Cluster is a set of members that know each other.
type Cluster struct {
	Members []*Member
}

// New prepares a cluster. Nothing runs before Start.
func New(config Config) (*Cluster, error) {
	binary, err := filepath.Abs(config.Binary)
	if err != nil {
		return nil, err
	}
	link := filepath.Join(config.Dir, "etcd")
	if err := os.Symlink(binary, link); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	ports, err := freePorts(2 * config.Members)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	var initial []string
	for i := range config.Members {
		m := &Member{
			name:    fmt.Sprintf("m%d", i),
			Client:  fmt.Sprintf("127.0.0.1:%d", ports[2*i]),
			peer:    fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1]),
			DataDir: filepath.Join(config.Dir, fmt.Sprintf("m%d.etcd", i)),
			Log:     filepath.Join(config.Dir, fmt.Sprintf("m%d.log", i)),
		}
		initial = append(initial, m.name+"="+m.peer)
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.command = append([]string{
			link,
			"--name=" + m.name,
			"--data-dir=" + m.DataDir,
			"--listen-client-urls=http://" + m.Client,
			"--advertise-client-urls=http://" + m.Client,
			"--listen-peer-urls=" + m.peer,
			"--initial-advertise-peer-urls=" + m.peer,
			"--initial-cluster=" + strings.Join(initial, ","),
			"--initial-cluster-token=interop",
			"--initial-cluster-state=new",
		}, config.Flags...)
	}
	return c, nil
}

// Endpoints lists the client addresses.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Client)
	}
	return all
}

// Start starts all members and waits until each answers a linearizable read.
func (c *Cluster) Start(ctx context.Context) error {
	for _, m := range c.Members {
		if err := m.Start(); err != nil {
			return err
		}
	}
	return c.WaitReady(ctx)
}

// WaitReady waits until each member answers a linearizable read.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, m := range c.Members {
		if err := m.waitReady(ctx); err != nil {
			return fmt.Errorf("%s: %w (see %s)", m.name, err, m.Log)
		}
	}
	return nil
}

// Stop kills all members.
func (c *Cluster) Stop() {
	for _, m := range c.Members {
		m.Kill()
	}
}

// Start starts the process.
func (m *Member) Start() error {
	log, err := os.OpenFile(m.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	process := exec.Command(m.command[0], m.command[1:]...)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = process.Wait()
		close(done)
	}()
	m.mu.Lock()
	m.process, m.done = process, done
	m.mu.Unlock()
	return nil
}

// Kill ends the process with SIGKILL and waits for its end.
func (m *Member) Kill() {
	m.mu.Lock()
	process, done := m.process, m.done
	m.mu.Unlock()
	if process != nil {
		_ = process.Process.Kill()
		<-done
	}
}

// Exited tells whether the process has ended, by itself or killed.
func (m *Member) Exited() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *Member) waitReady(ctx context.Context) error {
	client, err := Dial(m.Client)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := client.Get(attempt, "ready")
		cancel()
		if err == nil {
			return nil
		}
		if m.Exited() {
			return errors.New("the process ended")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Dial makes a silent client that reconnects quickly.
func Dial(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
}

// freePorts asks the system for ports that are free now.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
