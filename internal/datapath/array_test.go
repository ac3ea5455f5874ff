// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Rows on both sides of a window's border hold what was stored there, in the kernel, too.
func TestArrayAcrossWindows(t *testing.T) {
	d := mustOpen(t, options(t))
	m := d.maps[SockMapBackends]
	a := newArray[Backend](m)
	last := a.Len() - 1
	want := map[uint32]Backend{}
	for _, i := range []uint32{0, a.rows - 1, a.rows, 2*a.rows - 1, readWindow / uint32(a.stride), last} {
		want[i] = Backend{Port: uint16(i + 1), Protocol: 6}
		must(t, a.Store(i, want[i]))
	}
	for i, b := range want {
		var kernel Backend
		must(t, m.Lookup(&i, &kernel))
		if got := newArray[Backend](m).Load(i); got != b || kernel != b {
			t.Errorf("row %d: %+v, in the kernel %+v, want %+v", i, got, kernel, b)
		}
	}
	all, err := a.All()
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if err := a.Store(last+1, Backend{}); err == nil {
		t.Error("a row beyond the last was stored")
	}
}

// Only accessed windows of a table are mapped, because all of a mapping is resident.
func TestArrayMapsWhatIsLookedAt(t *testing.T) {
	d := mustOpen(t, options(t))
	before := mappedMaps(t)
	a := newArray[uint32](d.maps[SockMapSlots])
	must(t, a.Store(1, 1))
	must(t, a.Store(2, 1))
	if _, err := a.All(); err != nil {
		t.Fatal(err)
	}
	if n := mappedMaps(t) - before; n > pickWindow {
		t.Errorf("%d bytes are mapped for two rows, of a table of %d", n, arrayBytes(a.m))
	}
}

// mappedMaps returns how many bytes of BPF maps this process has mapped.
func mappedMaps(t *testing.T) (sum uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	must(t, err)
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
