// Command walcheck reads a write-ahead log with etcd's own reader.
//
//	walcheck [--index I --term T] DIR
//
// DIR is a member's member/wal. The log is read from its newest snapshot record that can be used, or from the one given, or,
// with --zero, from the start of the first file. It prints one line with what the log holds and exits 1 when the reader finds
// any fault. Nothing is repaired and nothing is written.
package main

import (
	"flag"
	"fmt"
	"os"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

func main() {
	index := flag.Uint64("index", 0, "index of the snapshot to read from")
	term := flag.Uint64("term", 0, "term of that snapshot")
	zero := flag.Bool("zero", false, "read from the start")
	entries := flag.Bool("entries", false, "print every entry")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: walcheck [--index I --term T | --zero] [--entries] DIR")
		os.Exit(2)
	}
	if err := check(flag.Arg(0), *index, *term, *zero, *entries); err != nil {
		fmt.Fprintln(os.Stderr, "walcheck:", err)
		os.Exit(1)
	}
}

func check(dir string, index, term uint64, zero, entries bool) error {
	logger := zap.NewNop()
	snapshots, err := wal.ValidSnapshotEntries(logger, dir)
	if err != nil {
		return fmt.Errorf("snapshot records: %w", err)
	}
	from := &walpb.Snapshot{Index: proto.Uint64(index), Term: proto.Uint64(term)}
	if index == 0 && !zero && len(snapshots) > 0 {
		from = snapshots[len(snapshots)-1]
	}
	log, err := wal.OpenForRead(logger, dir, from)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer log.Close()
	metadata, state, all, err := log.ReadAll()
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	var identity etcdserverpb.Metadata
	if err := proto.Unmarshal(metadata, &identity); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if err := inOrder(from.GetIndex(), all); err != nil {
		return err
	}
	last := from.GetIndex()
	changes := 0
	for _, entry := range all {
		last = entry.GetIndex()
		if entry.GetType() != raftpb.EntryNormal {
			changes++
		}
		if entries {
			fmt.Printf("%d/%d %v %d bytes\n", entry.GetTerm(), entry.GetIndex(), entry.GetType(), len(entry.GetData()))
		}
	}
	if state.GetCommit() > last {
		return fmt.Errorf("commit %d is beyond the last entry %d", state.GetCommit(), last)
	}
	fmt.Printf("node %x cluster %x snapshots %d from %d/%d entries %d confchanges %d last %d hardstate term %d vote %x commit %d\n",
		identity.GetNodeID(), identity.GetClusterID(), len(snapshots), from.GetTerm(), from.GetIndex(),
		len(all), changes, last, state.GetTerm(), state.GetVote(), state.GetCommit())
	return nil
}

// inOrder asks for indexes without a gap and terms that never fall.
func inOrder(from uint64, all []*raftpb.Entry) error {
	index, term := from, uint64(0)
	for _, entry := range all {
		if entry.GetIndex() != index+1 {
			return fmt.Errorf("entry %d follows entry %d", entry.GetIndex(), index)
		}
		if entry.GetTerm() < term {
			return fmt.Errorf("entry %d has term %d after term %d", entry.GetIndex(), entry.GetTerm(), term)
		}
		index, term = entry.GetIndex(), entry.GetTerm()
	}
	return nil
}
