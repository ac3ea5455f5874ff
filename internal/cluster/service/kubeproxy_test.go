// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestKubeProxyDecidesTheSame compares with what the rules of kube-proxy 1.36.3 did to packets in random
// worlds; testdata/kube-proxy/README.md describes how they were recorded.
func TestKubeProxyDecidesTheSame(t *testing.T) {
	file := "testdata/kube-proxy/traces.txt"
	if f := os.Getenv("TRACES"); f != "" {
		file = f
	}
	paragraphs := strings.Split(string(must(os.ReadFile(file))), "\n\n")
	packets := 0
	for _, paragraph := range paragraphs {
		w := parseTraceWorld(paragraph)
		table := w.table()
		checkSound(t, table)
		for _, p := range w.packets {
			want := strings.Split(p.outcomes, " | ")
			key := frontendKey(p.destination)
			for class, source := range traceSources[key.Addr.Is6()] {
				packets++
				got, want := meets(table, netip.MustParseAddr(source), SourceClass(min(class, int(FromOutside))), key), want[min(class, len(want)-1)]
				if got != want {
					t.Errorf("from %s to %s: %s; kube-proxy: %s", source, p.destination, got, want)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("in the world\n%s", paragraph)
		}
	}
	if packets < 1000 {
		t.Errorf("only %d packets in %s", packets, file)
	}
}

// table returns a Cluster with the world's objects, as converted.
func (w *traceWorld) table() *Cluster {
	config := testConfig()
	config.MasqueradeAll = w.masqueradeAll
	objects := []Object{
		&Node{Name: "here", Zone: w.zone, Addresses: addrs(hereIP, hereIP6)},
		serviceCIDR("kubernetes", "10.96.0.0/16", "fd00:96::/112"),
	}
	for _, s := range w.services {
		objects = append(objects, must(ConvertService(s)))
	}
	for _, s := range w.slices {
		objects = append(objects, must(ConvertEndpointSlice(s)))
	}
	return cluster(config, objects...)
}

// meets returns what happens to a packet, in the words of the traces.
func meets(table *Cluster, source netip.Addr, class SourceClass, key FrontendKey) string {
	p, f := at(table, key)
	if f == nil {
		p, f = at(table, FrontendKey{Addr: key.Addr})
	}
	if f == nil {
		if slices.ContainsFunc(table.ServiceCIDRs(), func(p netip.Prefix) bool { return p.Contains(key.Addr) }) {
			return "drop"
		}
		return "pass"
	}
	if f.SourceRanges != nil && !slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Contains(source) }) {
		return "drop"
	}
	d := f.Decisions[class]
	if d.Verdict != Balance {
		return d.Verdict.String()
	}
	var words []string
	for _, s := range p.Sets {
		if s.Key == f.Set(d) {
			for _, b := range s.Backends {
				words = append(words, b.Addr.String())
			}
		}
	}
	if d.Masquerade {
		words = append(words, "masq")
	}
	return strings.Join(words, " ")
}
