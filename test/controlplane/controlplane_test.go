// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/node/netfilter"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// kube-proxy in each mode writes rules for a Service in the API server, and its rules stay when it ends. The pod
// shortcut does not take them for packet filters.
func TestProxy(t *testing.T) {
	program, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	if err := Find(program); err != nil {
		t.Skip(err)
	}
	l := lab.NewOf(t, lab.Shape{ThreeNodes: true})
	c, err := Start(t.Context(), l, program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	objects := node.Cluster(l)
	service, slices := node.Service("web", 77), node.Slices("web", l.Host("b1"))
	refused := node.Service("refused", 78) // has no endpoints
	for i, s := range []*corev1.Service{service, refused} {
		s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeNodePort, []string{fmt.Sprint("192.0.2.", 1+i)}
		objects = append(objects, s)
	}
	for _, slice := range slices {
		objects = append(objects, slice)
	}
	if err := c.Create(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	for i, mode := range Modes {
		p, err := c.StartProxy(l.Nodes()[i], mode)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.AwaitRules(t.Context(), "serving web", "10.96.0.77", "10.10.2.11", "fd00:96::4d", "fd00:10:2::11"); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		rules, err := p.Rules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(rules, "10.96.0.77") {
			t.Errorf("%s: the rules are gone with kube-proxy:\n%s", mode, rules)
		}
		// The rules of iptables-legacy are not read: any counts.
		if found := filters(t, p.Host); (len(found) > 0) != (mode == IPTablesLegacy) {
			t.Errorf("%s: the pod shortcut finds filters: %v", mode, found)
		}
		kept, other := "KUBE-SVC", "table ip kube-proxy"
		if mode == NFTables {
			kept, other = other, kept
		}
		if !strings.Contains(rules, kept) || strings.Contains(rules, other) {
			t.Errorf("%s: the rules are not of this mode:\n%.3000s", mode, rules)
		}
	}
}

// filters are the packet filters that the pod shortcut finds on a node, for pods of 10.10.1.0/24 and fd00:10:1::/64.
func filters(t *testing.T, host *lab.Host) (found []netfilter.Finding) {
	t.Helper()
	subject := netfilter.Subject{
		Networks: []netip.Prefix{netip.MustParsePrefix("10.10.0.0/16"), netip.MustParsePrefix("fd00:10::/32")},
		Devices: []netfilter.Device{
			{Index: 100, Name: "pod", Pods: []netip.Addr{netip.MustParseAddr("10.10.1.11"), netip.MustParseAddr("fd00:10:1::11")}},
			{Index: 2, Name: "eth0", Uplink: true},
		},
	}
	if err := host.Do(func() (err error) {
		found, err = (&netfilter.Finder{}).Find(subject)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}
