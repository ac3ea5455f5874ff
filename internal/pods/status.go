// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
)

// Status is the state of the pod shortcut.
type Status struct {
	// Unavailable is why there is no shortcut although it is enabled.
	Unavailable string `json:"unavailable,omitempty"`
	// Devices are those of pods, in the order of their names.
	Devices []DeviceStatus `json:"devices"`
	// Uplinks are the names of the devices that lead to other nodes.
	Uplinks []string `json:"uplinks"`
	// Packets by their path.
	Packets map[string]uint64 `json:"packets,omitempty"`
}

// DeviceStatus is a device of pods.
type DeviceStatus struct {
	Name string       `json:"name"`
	Pods []netip.Addr `json:"pods"`
	// Waiting are addresses whose packets take the stack until packet filters have been searched for them.
	Waiting []netip.Addr `json:"waiting,omitempty"`
	// Unknown: no pod behind the device is known. It has sent nothing yet, or has an address that is not in the pod
	// networks.
	Unknown bool `json:"unknown,omitempty"`
	// Excess is how many more addresses a bridge has learned there. Their packets take the stack.
	Excess int `json:"excess,omitempty"`
	// Shortcut: its packets take the shortcut, and not the stack.
	Shortcut bool `json:"shortcut"`
	// Filters are those that the shortcut bypasses: why its packets take the stack, unless filters are ignored.
	Filters []string `json:"filters,omitempty"`
	// Invalid are rules that drop what conntrack finds invalid. Such packets pass on the shortcut.
	Invalid []string `json:"invalid,omitempty"`
}

// choose returns the pods whose packets are to take the shortcut: those whose packets no filter concerns, and for which
// filters have been searched. The status is right when the tables have these pods.
func (s *Shortcut) choose(filters []filter) (map[netip.Addr]place, Status) {
	status, at, rows := Status{Devices: []DeviceStatus{}, Uplinks: []string{}}, map[netip.Addr]place{}, map[int]int{}
	for _, addr := range sortedAddresses(s.around.at) {
		p := s.around.at[addr]
		i, ok := rows[p.device]
		if !ok {
			i, rows[p.device] = len(status.Devices), len(status.Devices)
			found := concerning(filters, p.device, false)
			status.Devices = append(status.Devices, DeviceStatus{
				Name: s.around.network.link(p.device).name, Pods: []netip.Addr{}, Shortcut: len(found) == 0 || s.config.IgnoreFilters, Filters: found,
				Excess: s.excess[p.device], Invalid: concerning(filters, p.device, true),
			})
		}
		d := &status.Devices[i]
		switch {
		case !s.config.IgnoreFilters && !s.searched.hasPod(s.around, addr):
			d.Waiting = append(d.Waiting, addr)
			continue
		case d.Shortcut:
			at[addr] = p
		}
		d.Pods = append(d.Pods, addr)
	}
	for _, index := range s.around.unknown {
		status.Devices = append(status.Devices, DeviceStatus{Name: s.around.network.link(index).name, Pods: []netip.Addr{}, Unknown: true})
	}
	for _, l := range s.around.uplinks {
		status.Uplinks = append(status.Uplinks, l.name)
	}
	slices.SortFunc(status.Devices, func(a, b DeviceStatus) int { return strings.Compare(a.Name, b.Name) })
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
func (s *Shortcut) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Devices = slices.Clone(status.Devices)
	return status
}

// Addresses counts the addresses of pods whose packets take the shortcut, and of those whose packets take the stack.
func (s *Status) Addresses() (pods, withheld int) {
	for _, d := range s.Devices {
		if d.Shortcut {
			pods += len(d.Pods)
		} else {
			withheld += len(d.Pods)
		}
		withheld += len(d.Waiting) + d.Excess
	}
	return pods, withheld
}

// Line is the status in one line.
func (s *Status) Line() string {
	if s.Unavailable != "" {
		return s.Unavailable
	}
	pods, withheld := s.Addresses()
	line := plural.Of(pods, "pod address")
	if len(s.Uplinks) > 0 {
		line += ", to other nodes by " + strings.Join(s.Uplinks, ", ")
	}
	if withheld > 0 {
		line += fmt.Sprintf("; %d take the stack", withheld)
	}
	unknown := 0
	for _, d := range s.Devices {
		if d.Unknown {
			unknown++
		}
	}
	if unknown > 0 {
		line += fmt.Sprintf("; no pod is known behind %s", plural.Of(unknown, "device"))
	}
	return line
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
		if d.Excess > 0 {
			all = append(all, condition.PodAddressLimit.New("%d addresses of pods behind the device, more than %d: packets of the others take the stack", mostLearned+d.Excess, mostLearned).At(d.Name))
		}
		if !d.Shortcut && len(d.Pods) > 0 {
			all = append(all, condition.PodShortcutWithheld.New("packets of %s take the stack: %s", plural.Of(len(d.Pods), "pod address"), strings.Join(d.Filters, "; ")).At(d.Name))
		}
	}
	return append(all, s.passesInvalid()...)
}

// passesInvalid returns which rules for invalid packets the shortcut bypasses. With IgnoreFilters it bypasses all.
func (s *Shortcut) passesInvalid() condition.List {
	var rules []string
	pods := 0
	for _, d := range s.status.Devices {
		if d.Shortcut && len(d.Pods) > 0 && len(d.Invalid) > 0 {
			rules, pods = append(rules, d.Invalid...), pods+len(d.Pods)
		}
	}
	if pods == 0 || s.config.IgnoreFilters {
		return nil
	}
	return condition.List{condition.PodPassesInvalid.New("packets of %s that conntrack finds invalid pass on the shortcut: %s", plural.Of(pods, "pod address"), strings.Join(atMost(rules), "; "))}
}
