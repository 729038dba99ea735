package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// boltTool is the example program of the crate dolmen-bolt; without it these tests are skipped.
func boltTool(t *testing.T) string {
	t.Helper()
	tool := os.Getenv("DOLMEN_BOLT_TOOL")
	if tool == "" {
		t.Skip("DOLMEN_BOLT_TOOL is not set")
	}
	return tool
}

func runTool(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := exec.Command(boltTool(t), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", arguments, err, output)
	}
	return string(output)
}

// contents opens a file for writing, as etcd does, checks it, and copies all pairs.
func contents(t *testing.T, path string) map[string]map[string]string {
	t.Helper()
	file, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := map[string]map[string]string{}
	err = file.View(func(tx *bolt.Tx) error {
		for fault := range tx.Check() {
			t.Error(fault)
		}
		return tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
			pairs := map[string]string{}
			all[string(name)] = pairs
			return bucket.ForEach(func(key, value []byte) error {
				pairs[string(key)] = string(value)
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// listing is what the tool's check prints for a file with these contents.
func listing(all map[string]map[string]string) map[string]bool {
	lines := map[string]bool{}
	for name, pairs := range all {
		lines[fmt.Sprintf("%s %d", name, len(pairs))] = true
	}
	return lines
}

func sameListing(t *testing.T, printed string, want map[string]bool) {
	t.Helper()
	lines := strings.Fields(strings.ReplaceAll(strings.TrimSpace(printed), " ", ":"))
	if len(lines) != len(want) {
		t.Fatalf("printed %q, want %v", printed, want)
	}
	for _, line := range lines {
		if !want[strings.Replace(line, ":", " ", 1)] {
			t.Fatalf("printed %q, want %v", printed, want)
		}
	}
}

func TestGoReadsAndChangesWhatDolmenWrites(t *testing.T) {
	boltTool(t)
	for seed, pairs := range []int{0, 1, 2, 100, 3000, 40000} {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("%d.db", seed))
		runTool(t, "write", path, fmt.Sprint(seed), fmt.Sprint(pairs))
		all := contents(t, path)
		if len(all["key"]) != pairs || len(all["large"]) != 3 || len(all["meta"]) != 2 {
			t.Fatalf("seed %d: %v", seed, listing(all))
		}
		change(t, path, int64(seed), all)
		sameListing(t, runTool(t, "check", path), listing(all))
	}
}

// change deletes and puts pairs of all buckets, in the file and in all, until little is left: every branch merges.
func change(t *testing.T, path string, seed int64, all map[string]map[string]string) {
	t.Helper()
	random := rand.New(rand.NewSource(seed))
	file, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for round := range 6 {
		err := file.Update(func(tx *bolt.Tx) error {
			for name, pairs := range all {
				bucket := tx.Bucket([]byte(name))
				for key := range pairs {
					if random.Intn(2) == 0 {
						delete(pairs, key)
						if err := bucket.Delete([]byte(key)); err != nil {
							return err
						}
					}
				}
				key, value := fmt.Sprintf("new%d", round), strings.Repeat("n", random.Intn(9000))
				pairs[key] = value
				if err := bucket.Put([]byte(key), []byte(value)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	now := contents(t, path)
	for name, pairs := range all {
		if len(now[name]) != len(pairs) {
			t.Fatalf("bucket %s has %d pairs, want %d", name, len(now[name]), len(pairs))
		}
	}
}

func TestDolmenReadsWhatGoWrites(t *testing.T) {
	boltTool(t)
	for _, options := range []bolt.Options{
		{}, {NoFreelistSync: true}, {PageSize: 1024}, {PageSize: 16384}, {FreelistType: bolt.FreelistMapType},
	} {
		options.NoSync = true
		dir := t.TempDir()
		path := filepath.Join(dir, "go.db")
		file, err := bolt.Open(path, 0o600, &options)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewSource(int64(options.PageSize)))
		for range 20 {
			err := file.Update(func(tx *bolt.Tx) error {
				for _, name := range []string{"key", "meta", "empty", "inline"} {
					bucket, err := tx.CreateBucketIfNotExists([]byte(name))
					if err != nil {
						return err
					}
					if err := fill(bucket, name, random); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		all := contents(t, path)
		sameListing(t, runTool(t, "check", path), listing(all))

		again := filepath.Join(dir, "again.db")
		runTool(t, "rewrite", path, again)
		saved, err := os.ReadFile(again)
		if err != nil {
			t.Fatal(err)
		}
		if len(saved)%512 != 32 {
			t.Fatalf("%d bytes have no hash at the end", len(saved))
		}
		if err := os.WriteFile(again, saved[:len(saved)-32], 0o600); err != nil {
			t.Fatal(err)
		}
		if rewritten := contents(t, again); fmt.Sprint(rewritten) != fmt.Sprint(all) {
			t.Fatal("the rewritten file holds something else")
		}
	}
}

func fill(bucket *bolt.Bucket, name string, random *rand.Rand) error {
	switch name {
	case "empty":
		return nil
	case "inline":
		return bucket.Put([]byte("k"), []byte("v"))
	}
	for range 300 {
		key := fmt.Appendf(nil, "%06d", random.Intn(20000))
		if random.Intn(3) == 0 {
			if err := bucket.Delete(key); err != nil {
				return err
			}
			continue
		}
		size := random.Intn(200)
		if random.Intn(100) == 0 {
			size = random.Intn(100_000)
		}
		if err := bucket.Put(key, bytes.Repeat([]byte{byte(size)}, size)); err != nil {
			return err
		}
	}
	return nil
}

// A snapshot of a running server, rewritten by Dolmen, must be the same to etcdutl, down to the hash it makes of all buckets.
func TestRewrittenSnapshotIsTheSameToEtcdutl(t *testing.T) {
	boltTool(t)
	etcdutl := os.Getenv("DOLMEN_ETCDUTL")
	if etcdutl == "" {
		t.Skip("DOLMEN_ETCDUTL is not set")
	}
	e := setup(t)
	for i := range 500 {
		e.put(fmt.Sprint(i%300), strings.Repeat("v", i*7))
	}
	stream, err := e.client.Snapshot(e.ctx)
	e.ok(err)
	defer stream.Close()
	dir := t.TempDir()
	saved, rewritten := filepath.Join(dir, "saved"), filepath.Join(dir, "rewritten")
	file, err := os.Create(saved)
	e.ok(err)
	_, err = file.ReadFrom(stream)
	e.ok(err)
	e.ok(file.Close())
	runTool(t, "rewrite", saved, rewritten)

	type status struct {
		Hash, TotalKey int64
		Revision       int64
		Version        string
	}
	ask := func(path string) status {
		output, err := exec.Command(etcdutl, "snapshot", "status", path, "-w", "json").Output()
		e.ok(err)
		var s status
		e.ok(json.Unmarshal(output, &s))
		return s
	}
	equal(e, "status", ask(rewritten), ask(saved))
	equal(e, "revision", ask(rewritten).Revision >= 500, true)
	output, err := exec.Command(etcdutl, "snapshot", "restore", rewritten, "--data-dir", filepath.Join(dir, "restored")).CombinedOutput()
	if err != nil {
		t.Fatalf("restore: %v\n%s", err, output)
	}
}
