// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
)

// choose returns the pods whose packets are to take the shortcut: those whose packets no filter concerns, and for which
// filters have been searched. The status is right when the tables have these pods.
func (s *Shortcut) choose(filters []filter) (map[netip.Addr]place, api.Pods) {
	status, at, rows := api.Pods{Devices: []api.PodDevice{}, Uplinks: []string{}}, map[netip.Addr]place{}, map[int]int{}
	for _, addr := range sortedAddresses(s.around.at) {
		p := s.around.at[addr]
		i, ok := rows[p.device]
		if !ok {
			i, rows[p.device] = len(status.Devices), len(status.Devices)
			found := concerning(filters, p.device, false)
			status.Devices = append(status.Devices, api.PodDevice{
				Name: s.around.network.device(p.device).Name, PodAddresses: []netip.Addr{}, Shortcut: len(found) == 0 || s.config.IgnoreFilters, PacketFilters: found,
				ExcessAddresses: s.excess[p.device], InvalidDropRules: concerning(filters, p.device, true),
			})
		}
		d := &status.Devices[i]
		switch {
		case !s.config.IgnoreFilters && !s.searched.hasPod(s.around, addr):
			d.WaitingAddresses = append(d.WaitingAddresses, addr)
			continue
		case d.Shortcut:
			at[addr] = p
		}
		d.PodAddresses = append(d.PodAddresses, addr)
	}
	for _, index := range s.around.unknown {
		status.Devices = append(status.Devices, api.PodDevice{Name: s.around.network.device(index).Name, PodAddresses: []netip.Addr{}, PodUnknown: true})
	}
	for _, l := range s.around.uplinks {
		status.Uplinks = append(status.Uplinks, l.Name)
	}
	slices.SortFunc(status.Devices, func(a, b api.PodDevice) int { return strings.Compare(a.Name, b.Name) })
	return at, status
}

// mostFilters is how many filters of a device are described.
const mostFilters = 5

// concerning describes the filters of a device: those that drop invalid packets alone, or the others.
func concerning(filters []filter, device int, invalid bool) (what []string) {
	for _, f := range filters {
		if (f.device == 0 || f.device == device) && f.invalid == invalid {
			what = append(what, f.what)
		}
	}
	return atMost(what)
}

// atMost sorts descriptions, and replaces those that are too many by their number.
func atMost(what []string) []string {
	slices.Sort(what)
	if what = slices.Compact(what); len(what) > mostFilters {
		what = append(what[:mostFilters], fmt.Sprintf("and %d more", len(what)-mostFilters))
	}
	return what
}

// Status returns the state.
func (s *Shortcut) Status() api.Pods {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Devices = slices.Clone(status.Devices)
	return status
}

// Conditions returns what prevents the shortcut.
func (s *Shortcut) Conditions() condition.List {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(s.searched.conditions(), s.overdue()...)
	if s.failure != nil {
		all = append(all, condition.PodShortcutFailed.New("%v", s.failure))
	}
	if s.around != nil {
		all = append(all, s.around.missing(s.config.Devices)...)
	}
	for _, d := range s.status.Devices {
		if d.ExcessAddresses > 0 {
			all = append(all, condition.PodAddressLimit.New("%d addresses of pods behind the device, more than %d: packets of the others take the stack", mostLearned+d.ExcessAddresses, mostLearned).At(d.Name))
		}
		if !d.Shortcut && len(d.PodAddresses) > 0 {
			all = append(all, condition.PodShortcutWithheld.New("packets of %s take the stack: %s", plural.Of(len(d.PodAddresses), "pod address"), strings.Join(d.PacketFilters, "; ")).At(d.Name))
		}
	}
	return append(all, s.passesInvalid()...)
}

// passesInvalid returns which rules for invalid packets the shortcut bypasses. With IgnoreFilters it bypasses all.
func (s *Shortcut) passesInvalid() condition.List {
	var rules []string
	pods := 0
	for _, d := range s.status.Devices {
		if d.Shortcut && len(d.PodAddresses) > 0 && len(d.InvalidDropRules) > 0 {
			rules, pods = append(rules, d.InvalidDropRules...), pods+len(d.PodAddresses)
		}
	}
	if pods == 0 || s.config.IgnoreFilters {
		return nil
	}
	return condition.List{condition.PodPassesInvalid.New("packets of %s that conntrack finds invalid pass on the shortcut: %s", plural.Of(pods, "pod address"), strings.Join(atMost(rules), "; "))}
}
