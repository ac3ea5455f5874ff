// SPDX-License-Identifier: Apache-2.0

package maglev

import (
	"flag"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden tables anew: nodes of different versions then disagree")

const goldenFile = "testdata/golden"

// golden returns one table in full and the hashes of larger ones.
func golden(t *testing.T) string {
	var out strings.Builder
	small := []Backend{
		{netip.MustParseAddrPort("10.0.0.1:80"), 1},
		{netip.MustParseAddrPort("10.0.0.2:80"), 3},
		{netip.MustParseAddrPort("10.0.0.2:81"), 1},
		{netip.MustParseAddrPort("[fd00::1]:80"), 2},
		{netip.MustParseAddrPort("[fd00::2]:80"), 255},
	}
	fmt.Fprintln(&out, "# Made by go test ./internal/tables/maglev -update. A change of it lets nodes of different versions disagree.")
	for _, b := range small {
		fmt.Fprintln(&out, b.Addr, "weight", b.Weight)
	}
	for i, b := range mustFill(t, 251, small) {
		fmt.Fprintln(&out, "slot", i, small[b].Addr)
	}
	for _, size := range []int{1021, 16381, 65537} {
		for _, weights := range []int{1, 4, 255} {
			var backends []Backend
			for i := range 40 {
				addr := netip.AddrFrom4([4]byte{10, 1, byte(i % 3), byte(i)})
				backends = append(backends, Backend{netip.AddrPortFrom(addr, 8080), uint8(1 + i*37%weights)})
			}
			sum := fnv.New64a()
			for _, b := range mustFill(t, size, backends) {
				sum.Write([]byte(backends[b].Addr.String()))
			}
			fmt.Fprintf(&out, "%d slots, 40 backends, weights to %d: %016x\n", size, weights, sum.Sum64())
		}
	}
	return out.String()
}

// TestGolden: the algorithm, on which nodes must agree, has not changed.
func TestGolden(t *testing.T) {
	got := golden(t)
	if *update {
		if err := os.WriteFile(goldenFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("tables differ from those in %s: nodes of different versions would send one flow to different backends", goldenFile)
	}
}
