// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Plans as text.

// names returns backends as letters for those on port 8080, else as address and port, followed by a weight
// other than 1.
func names(bs []Backend) string {
	var words []string
	for _, b := range bs {
		word := b.Addr.String()
		if raw := b.Addr.Addr().AsSlice(); b.Addr.Port() == 8080 && raw[len(raw)-2] == 0 {
			word = string(rune('a' + raw[len(raw)-1] - 1))
		}
		if b.Weight != 1 {
			word += fmt.Sprintf("*%d", b.Weight)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func inWords(p *Plan, f *Frontend, d Decision) string {
	if d.Verdict != Balance {
		return d.Verdict.String()
	}
	i := slices.IndexFunc(p.Sets, func(s BackendSet) bool { return s.Key == f.Set(d) })
	if i < 0 {
		return "balance to a set that is missing"
	}
	s := names(p.Sets[i].Backends)
	if d.Masquerade {
		s += " masq"
	}
	return s
}

func frontendKey(at string) FrontendKey {
	addrPort, proto, hasProto := strings.Cut(at, "/")
	if a, err := netip.ParseAddr(addrPort); err == nil {
		return FrontendKey{Addr: a, Protocol: map[string]Protocol{"ICMP": ICMP, "ICMPv6": ICMPv6}[proto]}
	}
	ap := netip.MustParseAddrPort(addrPort)
	p := TCP
	if hasProto {
		p = map[string]Protocol{"TCP": TCP, "UDP": UDP, "SCTP": SCTP}[proto]
	}
	return FrontendKey{ap.Addr(), ap.Port(), p}
}

// find returns the frontend at an address such as "10.0.0.1:80" or "10.0.0.1:53/UDP", and its plan.
func find(t *Cluster, address string) (*Plan, *Frontend) { return at(t, frontendKey(address)) }

func at(t *Cluster, key FrontendKey) (*Plan, *Frontend) {
	for _, p := range t.Owners() {
		for i := range p.Frontends {
			if p.Frontends[i].Key == key {
				return p, &p.Frontends[i]
			}
		}
	}
	return nil, nil
}

// verdicts returns the decisions of the classes at an address: "all reject", or "pod a b, node a b masq,
// outside drop", or "none" without a frontend.
func verdicts(t *Cluster, at string) string {
	p, f := find(t, at)
	if f == nil {
		return "none"
	}
	var parts []string
	for class, d := range f.Decisions {
		parts = append(parts, inWords(p, f, d))
		if class > 0 && parts[class] != parts[0] {
			parts[0] += "\x00"
		}
	}
	if !strings.HasSuffix(parts[0], "\x00") {
		return "all " + parts[0]
	}
	parts[0] = strings.TrimRight(parts[0], "\x00")
	return fmt.Sprintf("pod %s, node %s, outside %s", parts[0], parts[1], parts[2])
}

// expect maps addresses to verdicts.
type expect map[string]string

func check(t *testing.T, table *Cluster, want expect) {
	t.Helper()
	for at, w := range want {
		if got := verdicts(table, at); got != w {
			t.Errorf("at %s: %s; want %s", at, got, w)
		}
	}
}

// rule is a test case of a rule: objects, and the resulting decisions.
type rule struct {
	name    string
	config  func(*Config)
	objects []Object
	want    expect
}

func runRules(t *testing.T, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Helper()
			config := testConfig()
			if r.config != nil {
				r.config(&config)
			}
			check(t, cluster(config, r.objects...), r.want)
		})
	}
}

func everywhere(backends string) string {
	return fmt.Sprintf("pod %s, node %[1]s masq, outside %[1]s masq", backends)
}
