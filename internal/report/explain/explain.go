// SPDX-License-Identifier: Apache-2.0

// Package explain explains what happens to a client's packet or connect(), and why. It test-runs the edge's
// programs on a packet, or the socket programs' decision on a connect().
package explain

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/kernelclock"
)

// Answer is what happens to a packet or a connect(), and why.
type Answer struct {
	// Hook is xdp, tc or connect.
	Hook   string `json:"hook"`
	Device string `json:"device,omitempty"`
	// EarlierPrograms lists what the programs before Hook did.
	EarlierPrograms []string `json:"earlierPrograms,omitempty"`
	// Verdict is balance, reject, drop, answer (ICMP echo) or pass (unchanged). Reason is a key of
	// api.Reasons, and Why its text.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Why     string `json:"why"`
	// Rules are the numbers of the rules that apply (Rules).
	Rules []string `json:"rules,omitempty"`
	// Service is namespace/name. Frontend is the destination; nil if no Service has it.
	Service  string        `json:"service,omitempty"`
	Frontend *api.Frontend `json:"frontend,omitempty"`
	// ClientClass is the client's source class.
	ClientClass string `json:"clientClass,omitempty"`
	// Backends is the backend set. Backend is the chosen one; nil if the choice is random.
	Backends []api.Member `json:"backends,omitempty"`
	Backend  *api.Member  `json:"backend,omitempty"`
	// Affinity is kept, or new if the Service has session affinity but the client has no entry.
	Affinity string `json:"affinity,omitempty"`
	// FlowState is the state of the flow if there is one.
	FlowState string `json:"flowState,omitempty"`
	Original  Ends   `json:"original"`
	// Rewritten are the addresses and ports after the rewrite.
	Rewritten *Ends `json:"rewritten,omitempty"`
	// Encapsulated is how the packet reaches a backend that answers the client directly; nil without DSR.
	Encapsulated *Encapsulation `json:"encapsulated,omitempty"`
	LeavesBy     *Hop           `json:"leavesBy,omitempty"`
	// Offload is what flow offload does with a packet that is for no Service; nil if it is off.
	Offload *Offload `json:"offload,omitempty"`
	// Notes are additional remarks.
	Notes []string `json:"notes,omitempty"`
}

// Ends are the addresses, ports and protocol of a packet.
type Ends struct {
	Source      netip.AddrPort   `json:"source"`
	Destination netip.AddrPort   `json:"destination"`
	Protocol    service.Protocol `json:"protocol"`
}

func (e Ends) String() string {
	if isICMP(e.Protocol) {
		return fmt.Sprintf("%s > %s %s", e.Source.Addr(), e.Destination.Addr(), e.Protocol)
	}
	return fmt.Sprintf("%s > %s %s", e.Source, e.Destination, e.Protocol)
}

// Encapsulation describes an outer header or an IP option.
type Encapsulation struct {
	// DSR is ipip, geneve or opt. With opt, the packet has an IP option and no outer header.
	DSR string `json:"dsr"`
	// Source and Destination are the addresses of the outer header; not valid without one.
	Source      netip.Addr `json:"source,omitzero"`
	Destination netip.Addr `json:"destination,omitzero"`
}

func (e *Encapsulation) String() string {
	switch e.DSR {
	case conntrack.DSRNames[bpf.DSRIPIP]:
		return fmt.Sprintf("IPIP, %s > %s", e.Source, e.Destination)
	case conntrack.DSRNames[bpf.DSRGeneve]:
		return fmt.Sprintf("Geneve, %s > %s", e.Source, e.Destination)
	}
	return "with the original destination in an IP option"
}

// Hop is the next hop of a packet.
type Hop struct {
	Device  string     `json:"device"`
	NextHop netip.Addr `json:"nextHop"`
	MAC     string     `json:"mac,omitempty"` // empty: not resolved yet
}

// Explain answers a question from the tables pinned in a bpffs directory. It must run in the node's network
// namespace. It changes nothing.
//
// It returns an *api.RequestError if the question itself is wrong.
func Explain(bpffs string, q Question, offload OffloadReader) (*Answer, error) {
	raw, err := bpf.OpenTables(bpffs)
	if err != nil {
		return nil, err
	}
	other, err := bpf.OtherNamespace(bpffs)
	if err != nil {
		return nil, err
	}
	if other {
		return nil, api.BadRequest("this command runs in another network namespace than the agent of %s, with other devices and routes: "+
			"run it there, as in `nsenter --net=/proc/PID/ns/net beeline explain ...` with the PID of that agent", bpffs)
	}
	tables, err := offline.ReadTables(raw)
	if err != nil {
		return nil, err
	}
	x := &explainer{bpffs: bpffs, readOffload: offload, raw: raw, tables: tables, question: q}
	x.answer.Original = Ends{q.Source, q.Destination, q.Protocol}
	if q.Socket {
		err = x.socket()
	} else {
		err = x.packetOrOffload()
	}
	return &x.answer, err
}

// passed is the verdict about packets that the edge does not change.
var passed = service.Pass.String()

// packetOrOffload explains a packet by the edge, and by flow offload if the edge passes it or there is none.
func (x *explainer) packetOrOffload() error {
	err := x.packet()
	if err != nil && !x.unattached || err == nil && x.answer.Verdict != passed {
		return err
	}
	if exists, failed := x.offload(); failed != nil || !exists {
		return errors.Join(err, failed)
	}
	if err != nil {
		x.answer.Hook, x.answer.Verdict, x.answer.Why = "offload", passed, "the edge is at no device of this node"
	}
	return nil
}

type explainer struct {
	bpffs       string
	readOffload OffloadReader
	raw         *bpf.Tables
	tables      *api.Tables
	question    Question
	answer      Answer
	// unattached: the edge is at no device.
	unattached bool
}

func (x *explainer) note(format string, args ...any) {
	x.answer.Notes = append(x.answer.Notes, fmt.Sprintf(format, args...))
}

// frontend returns the frontend of a key and its Service.
func (x *explainer) frontend(key bpf.FrontendKey) (*api.Service, *api.Frontend) {
	for i := range x.tables.Services {
		s := &x.tables.Services[i]
		for j := range s.Frontends {
			if s.Frontends[j].Key == key {
				return s, &s.Frontends[j]
			}
		}
	}
	return nil, nil
}

// setFrontend sets the frontend, and returns the decision for the client's class.
func (x *explainer) setFrontend(s *api.Service, f *api.Frontend, class service.SourceClass) api.Decision {
	x.answer.Service, x.answer.Frontend, x.answer.ClientClass = s.Namespace+"/"+s.Name, f, class.String()
	d := [...]api.Decision{service.FromPod: f.FromPods, service.FromNode: f.FromNode, service.FromOutside: f.FromOutside}[class]
	x.answer.Backends = d.Backends
	return d
}

// remembered returns the backend of a client's valid session affinity entry, or 0.
func (x *explainer) remembered(f *api.Frontend, d api.Decision, client bpf.Address) (uint32, error) {
	if f.AffinitySeconds == 0 {
		return 0, nil
	}
	entry, err := x.raw.Affinity.Get(bpf.AffinityKey{Client: client, Service: f.ServiceID})
	if err != nil {
		return 0, err
	}
	if entry == nil || int32(kernelclock.CoarseSeconds()-entry.LastUsed) > int32(f.AffinitySeconds) ||
		!slices.ContainsFunc(d.Backends, func(m api.Member) bool { return m.ID == entry.Backend }) {
		return 0, nil
	}
	return entry.Backend, nil
}

// ownAddress reports whether an address belongs to the calling thread's network namespace.
func ownAddress(a netip.Addr) (bool, error) {
	if a.IsLoopback() {
		return true, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(own net.Addr) bool {
		p, err := netip.ParsePrefix(own.String())
		return err == nil && p.Addr().Unmap() == a
	}), nil
}

// rulesOf returns the rules that decide for a client at a frontend.
func rulesOf(f *api.Frontend, class service.SourceClass, d api.Decision, reason string) (rules []string) {
	switch {
	case reason == "drop_no_service" || f != nil && f.Kind == service.ClusterIPOtherPorts:
		return []string{"R21"}
	case f == nil, f.Kind == service.Echo && reason != "drop_source":
		return nil
	case reason == "drop_source":
		return []string{"R25"}
	}
	switch f.Kind {
	case service.ClusterIP:
		rules = []string{"R16"}
		if class == service.FromOutside {
			rules = append(rules, "R20")
		}
	case service.HostPort:
		rules = []string{"R33"}
	default:
		rules = []string{"R17"}
		// With externalTrafficPolicy Cluster, all clients at such an address are masqueraded (R19).
		if !f.FromOutside.Masquerade {
			rules = append(rules, "R18")
		}
	}
	if f.Kind == service.NodePort {
		rules = append(rules, "R22")
	}
	if f.Restricted {
		rules = append(rules, "R25")
	}
	if d.Verdict == service.Balance.String() {
		if f.AffinitySeconds > 0 {
			rules = append(rules, "R27")
		}
		if d.Masquerade {
			rules = append(rules, "R19")
		}
	}
	slices.SortFunc(rules, func(a, b string) int { return number(a) - number(b) })
	return rules
}

func number(rule string) int {
	n, _ := strconv.Atoi(rule[1:])
	return n
}
