// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/mappedarray"
)

// TestMemoryOfTheDefaultLimits: tune.md has the kernel memory that the tables of a large machine need in full from
// the start.
func TestMemoryOfTheDefaultLimits(t *testing.T) {
	o := bpf.NewOptions(t)
	options := bpf.EdgeOptions{SNATPorts: []bpf.PortRange{{First: 2000, Last: 2999}}, LateXDP: true}
	o.Components = []*bpf.Component{bpf.Socket(), bpf.Edge(func() *bpf.EdgeOptions { return &options })}
	o.Limits = bpf.DefaultLimits
	o.Limits.Flows = bpf.FlowsFor(1 << 40)
	d, err := bpf.Open(o)
	must(t, err)
	defer d.Close()
	var all, ofFlows uint64
	for _, table := range slices.Concat(o.Components[0].Tables, o.Components[1].Tables) {
		m := d.Map(table.Name)
		if m == nil {
			continue
		}
		switch table.Name {
		case bpf.EdgeTCMapConntrack, bpf.EdgeTCMapConntrackTags, bpf.EdgeTCMapUnreplied, bpf.EdgeTCMapUnrepliedTags:
			ofFlows += uint64(mappedarray.Bytes(m))
		case bpf.EdgeTCMapFragments:
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
	manifest, err := os.ReadFile("../../deploy/kubernetes/daemonset.yaml")
	must(t, err)
	requested := regexp.MustCompile(`memory: (\d+)Mi}`).FindSubmatch(manifest)
	if requested == nil {
		t.Fatal("the DaemonSet requests no memory in Mi")
	}
	request, err := strconv.Atoi(string(requested[1]))
	must(t, err)
	// tune.md adds these up: the agent, and 256 KiB for each of 64 CPUs.
	if need := (all+ofFlows)/mib + 100 + 64/4; uint64(request) < need || uint64(request) > need+16 {
		t.Errorf("the DaemonSet requests %d MiB, and agent and tables of a large node need %d", request, need)
	}
}
