// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"slices"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// members returns the backends of a set in the order of its list of members.
func (r *reader) members(slots, members codec.Range, owner string) (all []api.Member) {
	seen := map[uint32]int{} // index in all, by ID
	place := func(id uint32) int {
		at, known := seen[id]
		if !known {
			b := r.backend(id, owner)
			at = len(all)
			seen[id] = at
			all = append(all, api.Member{ID: id, Address: b.Address, Local: b.Local, NodeAddress: b.NodeAddress})
		}
		return at
	}
	if members != slots { // a Maglev table
		for _, id := range codec.Slots(r.tables, members) {
			place(id)
		}
	}
	for _, id := range codec.Slots(r.tables, slots) {
		all[place(id)].Slots++
	}
	return all
}

func (r *reader) backend(id uint32, owner string) *api.Backend {
	b := r.backends[id]
	if b == nil {
		b = &api.Backend{ID: id, Address: "(no such backend)"}
		if id < r.tables.Backends.Len() {
			row := codec.BackendOf(r.tables.Backends.Load(id))
			b.Address, b.Protocol, b.Local = row.AddrPort().String(), row.Protocol(), row.Local()
			if row.KnowsNode() {
				b.NodeAddress = row.Node().String()
			}
		}
		r.backends[id] = b
	}
	// The frontends of one owner are read consecutively.
	if n := len(b.Services); owner != "" && (n == 0 || b.Services[n-1] != owner) {
		b.Services = append(b.Services, owner)
	}
	return b
}

func (r *reader) sortedBackends() []api.Backend {
	all := make([]api.Backend, 0, len(r.backends))
	for _, b := range r.backends {
		slices.Sort(b.Services)
		b.Services = slices.Compact(b.Services)
		all = append(all, *b)
	}
	slices.SortFunc(all, func(a, b api.Backend) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// noteMembers registers the backends of a set, for callers that need only these.
func (r *reader) noteMembers(members codec.Range, owner string) {
	for _, id := range codec.Slots(r.tables, members) {
		r.backend(id, owner)
	}
}

// stableMembers returns the backends of a frontend's history that get no new flows.
func (r *reader) stableMembers(lists codec.Lists) (all []api.Member) {
	ids, known := r.stable[lists.History]
	if !known {
		for _, word := range codec.Slots(r.tables, lists.History) {
			if id, contested := codec.ParseHistoryWord(word); contested && id != 0 {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		r.stable[lists.History] = ids
	}
	serving := codec.Slots(r.tables, lists.Members[service.FromOutside])
	for _, id := range ids {
		if !slices.Contains(serving, id) {
			b := r.backend(id, "")
			all = append(all, api.Member{ID: id, Address: b.Address, Local: b.Local, NodeAddress: b.NodeAddress})
		}
	}
	return all
}
