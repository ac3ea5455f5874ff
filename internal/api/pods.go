// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/netip"
	"strings"

	"beeline.io/beeline/internal/util/plural"
)

// Pods is the state of the pod shortcut.
type Pods struct {
	// Unavailable is why there is no shortcut although it is enabled.
	Unavailable string `json:"unavailable,omitempty"`
	// Devices are those of pods, in the order of their names.
	Devices []PodDevice `json:"devices"`
	// Uplinks are the names of the devices that lead to other nodes.
	Uplinks []string `json:"uplinks"`
	// Packets by their path.
	Packets map[string]uint64 `json:"packets,omitempty"`
}

// PodDevice is a device of pods.
type PodDevice struct {
	Name         string       `json:"name"`
	PodAddresses []netip.Addr `json:"podAddresses"`
	// WaitingAddresses are addresses whose packets take the stack until packet filters have been searched for them.
	WaitingAddresses []netip.Addr `json:"waitingAddresses,omitempty"`
	// PodUnknown: no pod behind the device is known. It has sent nothing yet, or has an address that is not in the
	// pod networks.
	PodUnknown bool `json:"podUnknown,omitempty"`
	// ExcessAddresses is how many more addresses a bridge has learned there. Their packets take the stack.
	ExcessAddresses int `json:"excessAddresses,omitempty"`
	// Shortcut: its packets take the shortcut, and not the stack.
	Shortcut bool `json:"shortcut"`
	// PacketFilters are those that the shortcut bypasses: its packets take the stack, unless filters are ignored.
	PacketFilters []string `json:"packetFilters,omitempty"`
	// InvalidDropRules are rules that drop what conntrack finds invalid. Such packets pass on the shortcut.
	InvalidDropRules []string `json:"invalidDropRules,omitempty"`
}

// Addresses counts the addresses of pods whose packets take the shortcut, and of those whose packets take the stack.
func (s *Pods) Addresses() (pods, withheld int) {
	for _, d := range s.Devices {
		if d.Shortcut {
			pods += len(d.PodAddresses)
		} else {
			withheld += len(d.PodAddresses)
		}
		withheld += len(d.WaitingAddresses) + d.ExcessAddresses
	}
	return pods, withheld
}

// Line is the status in one line.
func (s *Pods) Line() string {
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
		if d.PodUnknown {
			unknown++
		}
	}
	if unknown > 0 {
		line += fmt.Sprintf("; no pod is known behind %s", plural.Of(unknown, "device"))
	}
	return line
}
