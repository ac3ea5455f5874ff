// SPDX-License-Identifier: Apache-2.0

// Package api defines what the agent answers at its unix socket, and is the client of it. All types have a JSON form,
// which `-o json` prints, too.
package api

import (
	"fmt"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
	"beeline.io/beeline/internal/util/plural"
)

// Status is the state of the agent and its datapath.
type Status struct {
	// Conditions are the problems found, worst first (assess.Status).
	Conditions condition.List `json:"conditions"`
	// Running means that an agent holds the bpffs directory. Answered means that the agent itself provided
	// this status; otherwise it comes from the pins alone.
	Running  bool `json:"running"`
	Answered bool `json:"answered"`
	// NoAnswerReason is why nothing in this status is from the agent, although it was asked; empty otherwise.
	NoAnswerReason string    `json:"noAnswerReason,omitempty"`
	Version        string    `json:"version"`
	PID            int       `json:"pid,omitempty"`
	Started        time.Time `json:"started,omitzero"`
	Node           string    `json:"node,omitempty"`
	// UnreadablePins names the pins that cannot be read, because another program removed them.
	UnreadablePins string `json:"unreadablePins,omitempty"`
	// BindProtectionUnavailable is why bind protection is off although it is configured.
	BindProtectionUnavailable string `json:"bindProtectionUnavailable,omitempty"`
	// EdgeUnavailable is why clients outside the cluster are not served although the edge is configured.
	EdgeUnavailable string `json:"edgeUnavailable,omitempty"`
	// OtherNetworkNamespace means that the status was read in another network namespace than the agent's, where
	// the agent's devices are not visible.
	OtherNetworkNamespace bool `json:"otherNetworkNamespace,omitempty"`
	// NodeAddressMissing means that no device in the agent's network namespace has an address of this node's Node
	// object.
	NodeAddressMissing bool `json:"nodeAddressMissing,omitempty"`
	// NodesWithoutPodCIDRs is the number of other Nodes without podCIDRs, whose pods count as clients
	// outside the cluster.
	NodesWithoutPodCIDRs int `json:"nodesWithoutPodCIDRs,omitempty"`
	// NodeUnknown means that there are Nodes, but none has this node's name.
	NodeUnknown bool `json:"nodeUnknown,omitempty"`
	// NodeDeleted means that this node's Node object was deleted, and its last state stays in use (R39).
	NodeDeleted bool   `json:"nodeDeleted,omitempty"`
	BPFFS       string `json:"pins"`
	// Drain is the last `beeline cleanup --drain`, unless an agent has restored the tables since.
	Drain  *Drain `json:"drain,omitempty"`
	Cgroup string `json:"cgroup,omitempty"`

	Source Source          `json:"source,omitzero"`
	Sync   reconcile.Stats `json:"sync,omitzero"`
	// UntrackedSlots counts the slots of untracked frontends that still need conntrack entries.
	UntrackedSlots    reconcile.SlotUsage `json:"untrackedSlots,omitzero"`
	SocketTermination SocketTermination   `json:"socketTermination,omitzero"`
	Attachments       []bpf.Attachment    `json:"attachments"`
	// ExpectedAttachments is the number of expected attachments; 0 if the status comes from the pins alone.
	ExpectedAttachments int           `json:"expectedAttachments,omitempty"`
	Features            []bpf.Feature `json:"features"`
	Counts              Counts        `json:"counts"`
	// Algorithm is the default for Services. MaglevTableSize is the number of slots of each Maglev table.
	Algorithm       service.Algorithm `json:"algorithm,omitempty"`
	MaglevTableSize uint32            `json:"maglevTableSize,omitempty"`
	// DSR is the default for Services. DSRHybrid means that by default only TCP uses it.
	DSR       service.DSR `json:"dsr,omitempty"`
	DSRHybrid bool        `json:"dsrHybrid,omitempty"`
	// DSRAccepted is which packets of balancers are decapsulated for backends of this node; nil if clients
	// outside the cluster are not served.
	DSRAccepted    *DSRAccepted        `json:"dsrAccepted,omitempty"`
	Tables         []reconcile.Usage   `json:"tables,omitempty"`
	SocketCounters *bpf.SocketCounters `json:"socketCounters"`
	// Edge is the state of the edge; nil if it is off.
	Edge *Edge `json:"edge,omitempty"`
	// Pods is the state of the pod shortcut; nil if it is off.
	Pods *Pods `json:"pods,omitempty"`
	// Offload is the state of flow offload; nil if it is off.
	Offload *Offload `json:"offload,omitempty"`
	// Health is the state of health checks; nil if there are none.
	Health *HealthStatus `json:"health,omitempty"`
	// ObjectsWithProblems are the objects with a failure or a problem.
	ObjectsWithProblems []reconcile.Status `json:"objectsWithProblems,omitempty"`
	// OptedOut are the pods that opted out of the socket shortcut.
	OptedOut optout.Status `json:"optedOut,omitzero"`
	// Components are the components with a status line.
	Components []ComponentStatus `json:"components,omitempty"`
	// ComponentConditions are the components' conditions that no other part of the status contains.
	// Status.Conditions contains them too.
	ComponentConditions condition.List `json:"-"`
	// PortConflicts are sockets of the node that are bound to NodePorts and HostPorts: bound before these
	// were served, or with bind protection off.
	PortConflicts []PortConflict `json:"portConflicts,omitempty"`
	// PortConflictsUnavailable is why PortConflicts cannot be determined.
	PortConflictsUnavailable string `json:"portConflictsUnavailable,omitempty"`
}

// ComponentStatus is the state of a component in one line.
type ComponentStatus struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// DSRAccepted is which packets of balancers are decapsulated, and why.
type DSRAccepted struct {
	Tunnels  bool   `json:"tunnels"`  // IPIP and Geneve
	IPOption bool   `json:"ipOption"` // of IP
	Why      string `json:"why"`
}

func (d *DSRAccepted) String() string {
	what := "passed unchanged"
	switch {
	case d.Tunnels && d.IPOption:
		what = "IPIP, Geneve and the IP option are accepted"
	case d.Tunnels:
		what = "IPIP and Geneve are accepted"
	}
	return fmt.Sprintf("%s (%s)", what, d.Why)
}

// Source is the state of the source of objects.
type Source struct {
	Kind     string    `json:"kind"`
	Location string    `json:"location"`
	Synced   bool      `json:"synced"`
	LastGood time.Time `json:"lastGood,omitzero"` // when a valid state was last applied
	// Problems are the conditions of its objects; Status.Conditions contains them too.
	Problems condition.List `json:"-"`
	// Errors is the number of problems that keep the current state from taking effect.
	Errors int `json:"errors"`
	// Warnings is the number of other problems.
	Warnings int `json:"warnings"`
	// Connection is the connection to the server; nil for manifests.
	Connection *source.Connection `json:"connection,omitempty"`
}

// Counts are the numbers of objects in the tables.
type Counts struct {
	Services       int `json:"services"`
	Frontends      int `json:"frontends"`
	Backends       int `json:"backends"`
	MaglevServices int `json:"maglevServices"` // with Maglev tables
	DSRServices    int `json:"dsrServices"`    // Services with DSR
}

// Untracked describes frontends without conntrack entries, and how long some slots still need entries; empty
// without such frontends.
func (s *Status) Untracked() string {
	if s.Sync.Untracked == 0 && s.UntrackedSlots.Contested == 0 {
		return ""
	}
	verb := "need"
	if s.Sync.Untracked == 1 {
		verb = "needs"
	}
	text := fmt.Sprintf("%s %s no conntrack entries for flows to other nodes", plural.Of(s.Sync.Untracked, "frontend"), verb)
	if s.UntrackedSlots.Contested == 0 {
		return text
	}
	text += fmt.Sprintf("; for now %d of %d slots do", s.UntrackedSlots.Contested, s.UntrackedSlots.Slots)
	if s.UntrackedSlots.Seconds == 0 {
		return text + ", until no conntrack entry leads to another backend"
	}
	return text + fmt.Sprintf(", for at most %v more unless tracked connections to other backends continue", time.Duration(s.UntrackedSlots.Seconds)*time.Second)
}
