// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/condition"
)

// EdgeOff is the mode of an edge that is off.
const EdgeOff = "off"

// Edge is the status of the edge.
type Edge struct {
	// Mode is the configured mode; empty: only the agent knows.
	Mode    string       `json:"mode,omitempty"`
	Devices []EdgeDevice `json:"devices"`
	// Problems are the conditions that are not of one device.
	Problems condition.List `json:"-"`
	// Counters of packets by reason (bpf.ReadEdgeCounters).
	Counters  map[string]uint64 `json:"counters,omitempty"`
	Conntrack conntrack.Status  `json:"conntrack,omitzero"`
	// DSR is the size of clients' packets that fit, for each kind and family in use.
	DSR []EdgeDSR `json:"dsr,omitempty"`
}

// EdgeDevice is the status of the edge at one device.
type EdgeDevice struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	Mode  string `json:"mode"` // xdp, generic xdp, tc or none
	// Role is what is behind the device: clients, backends, clients and backends, or only pods of this
	// node; flows means that the edge is attached only for existing ones. Empty: only the agent knows.
	Role string `json:"role,omitempty"`
	Why  string `json:"why,omitempty"`
	// XDPChain are the XDP programs that share the device with Beeline's, which is one
	// of them, in the order in which they run.
	XDPChain []xdpdispatch.ChainProgram `json:"xdpChain,omitempty"`
	// ModeRefused: clients are not served, or not in the mode that was requested.
	ModeRefused bool `json:"modeRefused,omitempty"`
	// DroppedByDriver is how many packets sent by XDP the driver has dropped since the edge was attached, by the
	// driver's own count, if that has grown in the last ten minutes.
	DroppedByDriver uint64 `json:"droppedByDriver,omitempty"`
}

// EdgeDSR is the packet size that reaches all backends on other nodes by one kind of DSR, for clients of
// one family. Sizes are in bytes from the IP header on.
type EdgeDSR struct {
	Kind              service.DSR    `json:"kind"`
	Family            service.Family `json:"family"` // 4 or 6
	MaxPacketBytes    int            `json:"maxPacketBytes"`
	WantedPacketBytes int            `json:"wantedPacketBytes"` // what clients may send
	OverheadBytes     int            `json:"overheadBytes"`
	// Device and MTU are those of the narrowest route to a backend. Route is its network if the route
	// has an MTU of its own, else empty.
	Device string `json:"device"`
	MTU    int    `json:"mtu"`
	Route  string `json:"route,omitempty"`
}

func (s EdgeDSR) String() string {
	text := fmt.Sprintf("DSR (%s), %s: clients' packets up to %d bytes", s.Kind, s.Family, s.MaxPacketBytes)
	if s.MaxPacketBytes >= s.WantedPacketBytes {
		return text
	}
	narrow := s.Device
	if s.Route != "" {
		narrow = fmt.Sprintf("the route to %s by %s", s.Route, s.Device)
	}
	return fmt.Sprintf("%s; larger ones are answered with ICMP: raise the MTU of %s from %d to %d, and that of all links on the route to the backends", text, narrow, s.MTU, s.WantedPacketBytes+s.OverheadBytes)
}
