// SPDX-License-Identifier: Apache-2.0

package mappedarray

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// row is as large as a row of the table of backends.
type row [3]uint64

// arrayOf makes an array with several windows of rows, of so many bytes each.
func arrayOf(t *testing.T, valueSize uint32) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: valueSize, MaxEntries: 1 << 18, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// Rows on both sides of a window's border hold what was stored there, in the kernel, too.
func TestArrayAcrossWindows(t *testing.T) {
	m := arrayOf(t, 24)
	a := New[row](m)
	last := a.Len() - 1
	want := map[uint32]row{}
	for _, i := range []uint32{0, a.rows - 1, a.rows, 2*a.rows - 1, ReadWindow / uint32(a.stride), last} {
		want[i] = row{uint64(i + 1), 2, 3}
		if err := a.Store(i, want[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range want {
		var kernel row
		if err := m.Lookup(&i, &kernel); err != nil {
			t.Fatal(err)
		}
		if got := New[row](m).Load(i); got != b || kernel != b {
			t.Errorf("row %d: %+v, in the kernel %+v, want %+v", i, got, kernel, b)
		}
	}
	all, err := a.All()
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if err := a.Store(last+1, row{}); err == nil {
		t.Error("a row beyond the last was stored")
	}
}

// Only accessed windows of a table are mapped, because all of a mapping is resident.
func TestArrayMapsWhatIsLookedAt(t *testing.T) {
	m := arrayOf(t, 4)
	before := mappedMaps(t)
	a := New[uint32](m)
	if err := errors.Join(a.Store(1, 1), a.Store(2, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.All(); err != nil {
		t.Fatal(err)
	}
	if n := mappedMaps(t) - before; n > pickWindow {
		t.Errorf("%d bytes are mapped for two rows, of a table of %d", n, Bytes(a.m))
	}
}

// mappedMaps returns how many bytes of BPF maps this process has mapped.
func mappedMaps(t *testing.T) (sum uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var from, to uint64
		if strings.Contains(line, "bpf-map") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			sum += to - from
		}
	}
	return sum
}
