// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// Member is a backend of a set. Its share of new connections is Slots of the
// sum of Slots.
type Member struct {
	ID      uint32 `json:"id"`
	Address string `json:"address"`
	Local   bool   `json:"local"`
	// Node is the address of its node, where packets are sent to that (geneve).
	Node  string `json:"node,omitempty"`
	Slots int    `json:"slots"`
}

// Backend is an endpoint that some frontend leads to.
type Backend struct {
	ID       uint32           `json:"id"`
	Address  string           `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	Local    bool             `json:"local"`
	Node     string           `json:"node,omitempty"` // as that of a Member
	Services []string         `json:"services"`       // namespace/name of those that lead to it
}

// members are the backends of a set in the order of its slots; of a Maglev table in
// that of the list before it (bpf/lib/types.h).
func (r *reader) members(d datapath.Decision, maglev bool, owner string) (all []Member) {
	seen := map[uint32]int{} // id to its place in all
	length := r.tables.Slots.Len()
	place := func(id uint32) int {
		at, known := seen[id]
		if !known {
			b := r.backend(id, owner)
			at = len(all)
			seen[id] = at
			all = append(all, Member{ID: id, Address: b.Address, Local: b.Local, Node: b.Node})
		}
		return at
	}
	if maglev && d.First > 0 && d.First <= length {
		for n := min(r.tables.Slots.Load(d.First-1), d.First-1, d.Count); n > 0; n-- {
			place(r.tables.Slots.Load(d.First - 1 - n))
		}
	}
	for n := d.First; n < d.First+d.Count && n < length; n++ {
		all[place(r.tables.Slots.Load(n))].Slots++
	}
	return all
}

func (r *reader) backend(id uint32, owner string) *Backend {
	b := r.backends[id]
	if b == nil {
		b = &Backend{ID: id, Address: "(no such backend)"}
		if id < r.tables.Backends.Len() {
			row := r.tables.Backends.Load(id)
			b.Address, b.Protocol, b.Local = row.AddrPort().String(), service.Protocol(row.Protocol), row.Local != 0
			if row.Node != row.Address {
				b.Node = row.Node.Addr().String()
			}
		}
		r.backends[id] = b
	}
	// The frontends of an owner are read one after the other.
	if n := len(b.Services); owner != "" && (n == 0 || b.Services[n-1] != owner) {
		b.Services = append(b.Services, owner)
	}
	return b
}

func (r *reader) sortedBackends() []Backend {
	all := make([]Backend, 0, len(r.backends))
	for _, b := range r.backends {
		slices.Sort(b.Services)
		b.Services = slices.Compact(b.Services)
		all = append(all, *b)
	}
	slices.SortFunc(all, func(a, b Backend) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// noteMembers is members for who only asks which backends there are: of a Maglev table the list before it.
func (r *reader) noteMembers(d datapath.Decision, maglev bool, owner string) {
	slots := r.tables.Slots
	if maglev && d.First > 0 && d.First <= slots.Len() {
		n := min(slots.Load(d.First-1), d.First-1, d.Count)
		d = datapath.Decision{First: d.First - 1 - n, Count: n}
	}
	for n := d.First; n < d.First+d.Count && n < slots.Len(); n++ {
		r.backend(slots.Load(n), owner)
	}
}
