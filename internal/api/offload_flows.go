// SPDX-License-Identifier: Apache-2.0

package api

import "net/netip"

// FlowPath is where packets of one direction of a flow go.
type FlowPath string

const (
	// PathSlow is the stack.
	PathSlow FlowPath = "slow"
	// PathCache is the flow cache.
	PathCache FlowPath = "cache"
	// PathFlowtable is a flowtable of the kernel in software.
	PathFlowtable FlowPath = "flowtable"
	// PathHardware is a flowtable of the kernel in hardware.
	PathHardware FlowPath = "hardware"
	// PathRefused is the stack, for a reason.
	PathRefused FlowPath = "refused"
)

// OffloadFlow is a flow of the kernel's conntrack that this node forwards.
type OffloadFlow struct {
	Protocol string `json:"protocol"` // tcp or udp
	// Client sends to Address. Backend sees the packets come from SeenAs, and arrive at its own address. Without
	// NAT Client is SeenAs, and Address is Backend.
	Client  netip.AddrPort `json:"client"`
	Address netip.AddrPort `json:"address"`
	SeenAs  netip.AddrPort `json:"seenAs"`
	Backend netip.AddrPort `json:"backend"`
	// State is that of the kernel's conntrack, as conntrack(8) names it: of TCP SYN_SENT, ESTABLISHED and so on; of
	// UDP UNREPLIED, REPLIED or ASSURED.
	State string `json:"state"`
	// FromClient are the client's packets, ToClient those to the client.
	FromClient FlowDirection `json:"fromClient"`
	ToClient   FlowDirection `json:"toClient"`
}

// FlowDirection is one direction of a flow.
type FlowDirection struct {
	Path   FlowPath `json:"path"`
	Reason string   `json:"reason,omitempty"` // of PathRefused
	// InDevice and OutDevice are the devices; empty on the stack.
	InDevice  string `json:"inDevice,omitempty"`
	OutDevice string `json:"outDevice,omitempty"`
	// Packets and Bytes, from the IP header on, are those that have left the stack; packets as merged by GRO. Of
	// a flowtable they are those that conntrack counts, with the first ones on the stack.
	Packets     uint64  `json:"packets"`
	Bytes       uint64  `json:"bytes"`
	IdleSeconds float64 `json:"idleSeconds,omitempty"`
}
