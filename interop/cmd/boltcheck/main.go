// Command boltcheck opens a bbolt file, walks all of it, and prints its buckets and how many keys each has.
//
//	boltcheck FILE
//
// A snapshot's hash at the end of the file does not disturb, and is proved when there is one. It exits 1 on any fault. The file
// is opened read-only.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	bolt "go.etcd.io/bbolt"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: boltcheck FILE")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "boltcheck:", err)
		os.Exit(1)
	}
}

func check(path string) error {
	if err := proveHash(path); err != nil {
		return err
	}
	file, err := bolt.Open(path, 0o400, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return err
	}
	defer file.Close()
	return file.View(func(tx *bolt.Tx) error {
		var faults []error
		for fault := range tx.Check() {
			faults = append(faults, fault)
		}
		if len(faults) > 0 {
			return errors.Join(faults...)
		}
		return tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
			keys := 0
			err := bucket.ForEach(func(_, _ []byte) error {
				keys++
				return nil
			})
			fmt.Printf("%s %d\n", name, keys)
			return err
		})
	})
}

// proveHash compares the 32 bytes that a saved snapshot ends with; other files have none.
func proveHash(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size()%512 != sha256.Size {
		return nil
	}
	hash := sha256.New()
	if _, err := io.CopyN(hash, file, info.Size()-sha256.Size); err != nil {
		return err
	}
	told, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(told, hash.Sum(nil)) {
		return errors.New("the SHA-256 at the end does not match")
	}
	fmt.Println("sha256 ok")
	return nil
}
