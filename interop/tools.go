//go:build e2e

package interop

// What is built or used from outside the code here: naming it keeps its modules in go.mod and go.sum.
import (
	_ "github.com/anishathalye/porcupine"
	_ "go.etcd.io/etcd/tests/v3/common"
)
