// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/mappedarray"
)

// TestMemoryOfTheDefaultLimits: tune.md has the kernel memory that the tables of a large machine need in full from
// the start.
func TestMemoryOfTheDefaultLimits(t *testing.T) {
	o := options(t)
	o.Edge = &EdgeOptions{SNATPorts: []PortRange{{First: 2000, Last: 2999}}, LateXDP: true}
	o.Limits = DefaultLimits
	o.Limits.Flows = flowsFor(1 << 40)
	d := mustOpen(t, o)
	var all, ofFlows uint64
	for name, m := range d.maps {
		switch name {
		case EdgeTCMapConntrack, EdgeTCMapConntrackTags, EdgeTCMapUnreplied, EdgeTCMapUnrepliedTags:
			ofFlows += uint64(mappedarray.Bytes(m))
		case EdgeTCMapFragments:
			ofFlows += uint64(m.MaxEntries()) * 128
		default:
			if m.Type() == ebpf.Array {
				all += uint64(mappedarray.Bytes(m))
			}
		}
	}
	const mib = 1 << 20
	want := fmt.Sprintf("about %d MiB of kernel memory and 256 KiB for each CPU, at most %d MiB more for clients' flows", (all+mib/2)/mib, (ofFlows+mib/2)/mib)
	text, err := os.ReadFile("../../docs/operate/tune.md")
	must(t, err)
	if !strings.Contains(string(text), want) {
		t.Errorf("docs/operate/tune.md does not say %q", want)
	}
}
