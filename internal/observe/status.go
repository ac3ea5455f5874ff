// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/pods"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
	"beeline.io/beeline/internal/sync"
	"beeline.io/beeline/internal/terminate"
)

// Status is how the agent and its datapath are.
type Status struct {
	// Running: an agent holds the bpffs directory. Answered: it said all this;
	// else only what the pins tell is known.
	Running  bool      `json:"running"`
	Answered bool      `json:"answered"`
	Version  string    `json:"version"`
	PID      int       `json:"pid,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Node     string    `json:"node,omitempty"`
	// Unreadable says which pins cannot be read: somebody has removed them.
	Unreadable string `json:"unreadable,omitempty"`
	// Unprotected says why ports are not protected although that was asked for.
	Unprotected string `json:"unprotected,omitempty"`
	// Unserved says why clients outside of the cluster are not served although that
	// was asked for.
	Unserved string `json:"unserved,omitempty"`
	// OtherNamespace: this was read in another network namespace than the agent's, whose
	// devices cannot be seen from there.
	OtherNamespace bool `json:"otherNamespace,omitempty"`
	// NoOwnAddress: no device of the agent's network namespace has an address of this node's
	// Node object.
	NoOwnAddress bool `json:"noOwnAddress,omitempty"`
	// UntoldPods is how many other Nodes have pods that cannot be told from clients outside.
	UntoldPods int `json:"untoldPods,omitempty"`
	// UnknownNode: there are Nodes, and none has this node's name.
	UnknownNode bool `json:"unknownNode,omitempty"`
	// NodeDeleted: this node's Node object is gone, and its last facts are in force (R39).
	NodeDeleted bool   `json:"nodeDeleted,omitempty"`
	BPFFS       string `json:"bpffs"`
	Cgroup      string `json:"cgroup,omitempty"`

	Source Source     `json:"source,omitzero"`
	Sync   sync.Stats `json:"sync,omitzero"`
	// Settling is how far slots of untracked frontends are on their way to need records no
	// more.
	Settling    sync.Settling         `json:"settling,omitzero"`
	Sockets     terminate.Status      `json:"sockets,omitzero"`
	Attachments []datapath.Attachment `json:"attachments"`
	// Hooks is how many attachments there should be; 0: only the agent knows.
	Hooks    int                `json:"hooks,omitempty"`
	Features []datapath.Feature `json:"features"`
	Counts   Counts             `json:"counts"`
	// Algorithm is that of Services that ask for none; TableSize the number of slots of
	// each Maglev table.
	Algorithm service.Algorithm `json:"algorithm,omitempty"`
	TableSize uint32            `json:"tableSize,omitempty"`
	// DSR is that of Services that ask for none; DSRHybrid: of these only TCP goes by it,
	// unless they say otherwise.
	DSR       service.DSR `json:"dsr,omitempty"`
	DSRHybrid bool        `json:"dsrHybrid,omitempty"`
	// DSRAccepted is what is opened of what balancers have encapsulated for backends of this
	// node; nil: clients outside of the cluster are not served.
	DSRAccepted *DSRAccepted             `json:"dsrAccepted,omitempty"`
	Tables      []sync.Fill              `json:"tables,omitempty"`
	Counters    *datapath.SocketCounters `json:"counters"`
	// Edge is how clients outside of the cluster are served; nil: they are not.
	Edge *edge.Status `json:"edge,omitempty"`
	// Health is how the backends are that have health checks; nil: none has.
	Health *HealthStatus `json:"health,omitempty"`
	// Objects are those with a failure or a problem.
	Objects []sync.Status `json:"objects,omitempty"`
	// OptedOut are the pods without the socket shortcut: they get no Services
	// from Beeline yet.
	OptedOut pods.Status `json:"optedOut,omitzero"`
	// HeldPorts are sockets of the node that wait at NodePorts and HostPorts:
	// bound before these were served, or with bind protection off.
	HeldPorts []HeldPort `json:"heldPorts,omitempty"`
	// HeldPortsUnknown says why HeldPorts could not be found out.
	HeldPortsUnknown string `json:"heldPortsUnknown,omitempty"`
}

// DSRAccepted says which packets of balancers are opened, and why.
type DSRAccepted struct {
	Tunnels bool   `json:"tunnels"` // IPIP and Geneve
	Option  bool   `json:"option"`  // of IP
	Why     string `json:"why"`
}

func (d *DSRAccepted) String() string {
	what := "left alone"
	switch {
	case d.Tunnels && d.Option:
		what = "IPIP, Geneve and options are opened"
	case d.Tunnels:
		what = "IPIP and Geneve are opened"
	}
	return fmt.Sprintf("%s (%s)", what, d.Why)
}

// Source is where the objects come from.
type Source struct {
	Kind     string    `json:"kind"`
	Location string    `json:"location"`
	Synced   bool      `json:"synced"`
	LastGood time.Time `json:"lastGood,omitzero"` // when its state was last taken in
	Problems []string  `json:"problems,omitempty"`
	// Notes are about objects that no Service needs.
	Notes []string `json:"notes,omitempty"`
	// Errors is the number of problems that keep its present state out of force.
	Errors int `json:"errors"`
	// Warnings is the number of other problems.
	Warnings int `json:"warnings"`
	// Connection to a server; nil for manifests.
	Connection *source.Connection `json:"connection,omitempty"`
}

// awayTooLong is how long an API server may be away before it is worth a
// complaint: the restart of one is not.
const awayTooLong = 30 * time.Second

// away complains of a server that does not answer.
func (s *Source) away() string {
	c := s.Connection
	if c == nil || c.Connected || time.Since(c.Since) < awayTooLong {
		return ""
	}
	text := fmt.Sprintf("the API server has not answered for %s, and changes are not heard of: the last state is in force", time.Since(c.Since).Round(time.Second))
	if c.Error != "" {
		text += ": " + c.Error
	}
	return text
}

// Counts are the numbers of things in the tables.
type Counts struct {
	Services  int `json:"services"`
	Frontends int `json:"frontends"`
	Backends  int `json:"backends"`
	Maglev    int `json:"maglev"` // Services with Maglev tables
	DSR       int `json:"dsr"`    // Services with DSR
}

// Untracked says what is not recorded, and for how long more is than need be; empty if there is
// nothing to say.
func (s *Status) Untracked() string {
	if s.Sync.Untracked == 0 && s.Settling.Contested == 0 {
		return ""
	}
	text := fmt.Sprintf("%d frontends need no records of flows to other nodes", s.Sync.Untracked)
	if s.Settling.Contested == 0 {
		return text
	}
	text += fmt.Sprintf("; for now %d of %d slots do", s.Settling.Contested, s.Settling.Slots)
	if s.Settling.Seconds == 0 {
		return text + ", until no record leads elsewhere"
	}
	return text + fmt.Sprintf(", for at most %v more unless recorded connections go on elsewhere", time.Duration(s.Settling.Seconds)*time.Second)
}

// CountsOf counts.
func CountsOf(t *Tables) Counts {
	c := Counts{Services: len(t.Services), Backends: len(t.Backends)}
	for i := range t.Services {
		c.Frontends += len(t.Services[i].Frontends)
		if t.Services[i].Algorithm == service.Maglev {
			c.Maglev++
		}
		if slices.ContainsFunc(t.Services[i].Frontends, func(f Frontend) bool { return f.DSR != "" }) {
			c.DSR++
		}
	}
	return c
}

// nearlyFull is when a table is worth a warning.
const nearlyFull = 0.9

// Complaints are the reasons why not all is well, empty if it is.
func (s *Status) Complaints() []string {
	var all []string
	if !s.Running {
		all = append(all, "no agent is running: the tables serve on as they are, and nothing follows changes")
	}
	if s.Answered && !s.Sync.Synced {
		serves := "what an earlier agent left serves on"
		if len(s.Attachments) == 0 {
			serves = "nothing is attached"
		}
		all = append(all, "no complete state has been read yet: "+serves)
	}
	if away := s.Source.away(); away != "" {
		all = append(all, away)
	}
	if s.Source.Errors > 0 {
		all = append(all, fmt.Sprintf("the source has errors (%d): its last good state is in force", s.Source.Errors))
	}
	if s.Source.Warnings > 0 {
		all = append(all, fmt.Sprintf("the source has warnings (%d): what they name is not in force as it is written", s.Source.Warnings))
	}
	if s.Sync.Failing > 0 {
		all = append(all, fmt.Sprintf("frontends that could not be brought into the tables: %d", s.Sync.Failing))
	}
	if s.Sync.LeftOut > 0 {
		all = append(all, fmt.Sprintf("objects that are left out, wholly or in part, because they do not fit into the tables or are more than their share: %d", s.Sync.LeftOut))
	}
	if s.Sync.Networks != "" {
		all = append(all, "not all ServiceCIDRs and networks of pods could be brought into the tables: "+s.Sync.Networks)
	}
	if s.Sync.Balancers != "" {
		all = append(all, "packets of some balancers may be refused, which could not be brought into the tables: "+s.Sync.Balancers)
	}
	for _, p := range s.Sync.BothNetworks {
		all = append(all, fmt.Sprintf("%s is a ServiceCIDR and a network of pods: it counts as the former, and pods there as clients from outside; change the Nodes' podCIDRs or --pod-networks", p))
	}
	if lost := s.withProblems(); len(lost) > 0 {
		all = append(all, fmt.Sprintf("objects that ask for something that they do not get: %d (%s)", len(lost), someOf(lost)))
	}
	if s.Sockets.LastError != "" {
		all = append(all, "sockets whose backend is gone may live on: "+s.Sockets.LastError)
	}
	if n := len(s.HeldPorts); n > 0 {
		all = append(all, fmt.Sprintf("sockets of this node at ports of Services and Pods (%d): what connects there goes to these", n))
	}
	if s.Unreadable != "" {
		all = append(all, "pins are missing, and a running agent makes them again within a second or two: "+s.Unreadable)
	}
	for _, why := range []string{s.Unprotected, s.Unserved} {
		if why != "" {
			all = append(all, why)
		}
	}
	if s.UntoldPods > 0 {
		all = append(all, fmt.Sprintf("Nodes without podCIDRs (%d): their pods cannot be told from clients outside, and meet externalTrafficPolicy as these do; "+
			"name the networks of pods with --pod-networks", s.UntoldPods))
	}
	if s.OtherNamespace {
		all = append(all, "this was read in another network namespace than the agent's: devices are named and looked for in the wrong place; run the command there")
	}
	if s.NoOwnAddress {
		all = append(all, fmt.Sprintf("no device here has an address of Node %q: is the agent in the node's own network namespace (in a pod: hostNetwork: true), and is --node-name right?", s.Node))
	}
	if s.HeldPortsUnknown != "" {
		all = append(all, "which sockets hold ports of Services and Pods is not known: "+s.HeldPortsUnknown)
	}
	if s.UnknownNode {
		all = append(all, fmt.Sprintf("no Node is called %q: there are no NodePorts, and only endpoints that name it count as local; is --node-name right?", s.Node))
	}
	if s.NodeDeleted {
		all = append(all, fmt.Sprintf("Node %s has been deleted: its last addresses, zone and podCIDRs stay in force until there is another", s.Node))
	}
	all = append(all, s.healthComplaints()...)
	all = append(all, s.optOutComplaints()...)
	if s.Edge != nil {
		all = append(all, s.Edge.Complaints()...)
	}
	if len(s.Attachments) < s.Hooks {
		all = append(all, fmt.Sprintf("%d of %d hooks are attached", len(s.Attachments), s.Hooks))
	}
	for _, a := range s.Attachments {
		if a.Detached {
			all = append(all, fmt.Sprintf("hook %s is detached, because its cgroup is gone or by somebody's hand", a.Hook))
		}
	}
	for _, f := range s.Tables {
		if float64(f.Used) > nearlyFull*float64(f.Limit) {
			text := fmt.Sprintf("table %s is nearly full (%d of %d)", f.Table, f.Used, f.Limit)
			if f.Flag != "" {
				text += ": raise --" + f.Flag
			}
			all = append(all, text)
		}
	}
	return all
}

func (s *Status) withProblems() (objects []string) {
	for _, o := range s.Objects {
		if len(o.Problems) > 0 {
			objects = append(objects, o.Owner.String())
		}
	}
	return objects
}

// mostNamed is how many objects a complaint names.
const mostNamed = 3

func someOf(names []string) string {
	if len(names) > mostNamed {
		return strings.Join(names[:mostNamed], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

// ReadStatus reads what the pins of a bpffs directory tell. The rest of a
// Status only a running agent knows.
func ReadStatus(bpffs, version string, tables *Tables) *Status {
	s := &Status{Version: version, BPFFS: bpffs, Features: datapath.Features(), Counts: CountsOf(tables)}
	s.Running, s.PID = datapath.AgentRunning(bpffs)
	var attachments, counters error
	s.Attachments, attachments = datapath.Attachments(bpffs)
	s.Counters, counters = datapath.ReadCounters(bpffs)
	var edgeErr error
	s.Edge, edgeErr = edge.ReadStatus(bpffs)
	var namespaceErr error
	s.OtherNamespace, namespaceErr = datapath.OtherNamespace(bpffs)
	if err := errors.Join(attachments, counters, edgeErr, namespaceErr); err != nil {
		s.Unreadable = err.Error()
	}
	return s
}
