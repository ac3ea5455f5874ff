// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// R39: the last state of a Node is not lost if it changed and was removed between two events. An event names it once,
// and only then.
func TestLastStateOfRemovedNode(t *testing.T) {
	kinds := kindsFor("here", "")
	s := newState(kinds)
	byName := map[service.Kind]*kind{}
	for i := range kinds {
		s.listed(&kinds[i], nil)
		byName[kinds[i].name] = &kinds[i]
	}
	nodes := byName[service.KindNode]
	put := func(zone string) {
		i := &item{object: &service.Node{Name: "here", Zone: zone}}
		i.Name = "here"
		s.changed(nodes, i)
	}
	remove := func() {
		i := &item{}
		i.Name = "here"
		s.changed(nodes, i)
	}
	zone := func(o service.Object) string {
		if o == nil {
			return ""
		}
		return o.(*service.Node).Zone
	}
	for _, c := range []struct {
		what      string
		do        func()
		now, last string
		none      bool
	}{
		{what: "added", do: func() { put("east") }, now: "east"},
		{what: "changed and removed", do: func() { put("west"); remove() }, last: "west"},
		{what: "added and removed", do: func() { put("north"); remove() }, last: "north"},
		{what: "added again", do: func() { put("east") }, now: "east"},
		{what: "removed and added", do: func() { put("west"); remove(); put("south") }, now: "south"},
		{what: "removed", do: remove},
		{what: "nothing", do: func() {}, none: true},
	} {
		c.do()
		ev, _ := s.next()
		if c.none != (len(ev.Changes) == 0) || len(ev.Changes) > 1 {
			t.Fatalf("%s: %+v", c.what, ev.Changes)
		}
		if c.none {
			continue
		}
		if got := ev.Changes[0]; zone(got.Object) != c.now || zone(got.Last) != c.last {
			t.Errorf("%s: %q, last %q; want %q, %q", c.what, zone(got.Object), zone(got.Last), c.now, c.last)
		}
	}
}
