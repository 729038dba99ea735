//go:build e2e

package interop

import (
	_ "github.com/anishathalye/porcupine"
	_ "go.etcd.io/etcd/tests/v3/common"
)
