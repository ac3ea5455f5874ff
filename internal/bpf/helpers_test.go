// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/test/lab"
)

// The first thread is reserved for TestMain: what a test does to a thread that it has locked would stay
// there, visible in /proc/self. Only other threads end with their goroutine.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// options returns the options of an agent on a node of its own lab.
func options(t *testing.T) Options {
	t.Helper()
	node := lab.New(t).Nodes()[0]
	return Options{BPFFS: filepath.Join(node.BPFFS, "beeline"), CgroupRoot: node.CgroupRoot, BindProtection: true, Components: []*Component{Socket()}}
}

func mustOpen(t *testing.T, o Options) *Datapath {
	t.Helper()
	d, err := Open(o)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

func frontendKey(n byte) FrontendKey {
	return FrontendKey{Address: AddressFrom(netip.AddrFrom4([4]byte{10, 96, 0, n})), Port: NetworkOrder(80), Protocol: 6}
}

// must ends the test if a step fails that the test is not about.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pinMap pins an array that is not Beeline's, with values of a size.
func pinMap(t *testing.T, path string, valueSize uint32) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: valueSize, MaxEntries: 10})
	must(t, err)
	defer m.Close()
	must(t, m.Pin(path))
}

func wantGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", path, err)
	}
}
