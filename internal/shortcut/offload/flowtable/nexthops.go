// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// follows brings the sets of valid next hops up to date, and has the table replaced if a flow has one that is not, or
// that moved.
func (f *Flowtable) follows(c change) error {
	relevant := func(all []hop) (some []hop) {
		for _, h := range all {
			if f.devices[h.device] {
				some = append(some, h)
			}
		}
		return some
	}
	added, removed, moved := relevant(c.added), relevant(c.removed), relevant(c.moved)
	if len(added)+len(removed) > 0 {
		if err := f.changeSets(added, removed); err != nil {
			return err
		}
	}
	if len(moved) == 0 {
		return nil
	}
	used, err := f.used() // after the removal, so that no further flow has it
	if err != nil {
		return err
	}
	if slices.ContainsFunc(moved, func(h hop) bool { return used[h] }) {
		f.setDue("a next hop")
	}
	return nil
}

// tables returns the tables that are there.
func (f *Flowtable) tables() []*nftables.Table {
	if len(f.report.HardwareDevices) > 0 {
		return []*nftables.Table{tableOf(true), tableOf(false)}
	}
	return []*nftables.Table{tableOf(false)}
}

func (f *Flowtable) changeSets(added, removed []hop) error {
	return f.batch(func(c *nftables.Conn) error {
		for _, t := range f.tables() {
			for i, h := range slices.Concat(added, removed) {
				change := c.SetAddElements
				if i >= len(added) {
					change = c.SetDeleteElements
				}
				if err := change(validSet(t, h), []nftables.SetElement{{Key: h.key()}}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// validSet is the set of valid next hops of the family of one.
func validSet(t *nftables.Table, h hop) *nftables.Set {
	if h.address.Is6() {
		return &nftables.Set{Table: t, Name: validSet6, KeyType: nextHop6Type}
	}
	return &nftables.Set{Table: t, Name: validSet4, KeyType: nextHop4Type}
}

// used reads which next hops flows had since the table was created.
func (f *Flowtable) used() (used map[hop]bool, err error) {
	used = map[hop]bool{}
	err = f.with(func(c *nftables.Conn) error {
		for _, t := range f.tables() {
			for _, name := range []string{usedSet4, usedSet6} {
				elements, err := c.GetSetElements(&nftables.Set{Table: t, Name: name})
				if err != nil {
					return fmt.Errorf("read set %s of table inet %s: %w", name, t.Name, err)
				}
				for _, e := range elements {
					if h, ok := hopOf(e.Key); ok {
						used[h] = true
					}
				}
			}
		}
		return nil
	})
	return used, err
}

// confirm has the kernel probe stale next hops of flows: the kernel does so when the stack uses them, but a flow to a
// port of a bridge, or in hardware, does not.
func (f *Flowtable) confirm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config == nil {
		return
	}
	used, err := f.used()
	if err != nil {
		f.setDue("the table was deleted")
		return
	}
	_ = f.do(func() error {
		for h := range used {
			if v, ok := f.network.valid[h]; ok && v.stale {
				probe(h, v)
			}
		}
		return nil
	})
}

// probe has the kernel take a neighbour for used now (NTF_USE); it does not change it. A neighbour that is gone needs
// no probe.
func probe(h hop, v neighbour) {
	_ = netlink.NeighSet(&netlink.Neigh{
		LinkIndex: h.device, Family: nl.GetIPFamily(h.address.AsSlice()), Flags: netlink.NTF_USE, IP: h.address.AsSlice(), HardwareAddr: []byte(v.mac),
	})
}
