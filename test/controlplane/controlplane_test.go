// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"os"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// kube-proxy in each mode writes rules for a Service in the API server, and its rules stay when it ends.
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
	objects = append(objects, service)
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
		kept, other := "KUBE-SVC", "table ip kube-proxy"
		if mode == NFTables {
			kept, other = other, kept
		}
		if !strings.Contains(rules, kept) || strings.Contains(rules, other) {
			t.Errorf("%s: the rules are not of this mode:\n%.3000s", mode, rules)
		}
	}
}
