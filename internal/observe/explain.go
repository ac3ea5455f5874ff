// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// Answer is what becomes of a packet or a connect(), and why.
type Answer struct {
	// Entry is xdp, tc or connect. Of the first two the programs themselves say all
	// this, run on such a packet; of connect it is what the tables say.
	Entry  string `json:"entry"`
	Device string `json:"device,omitempty"`
	// Before says what programs did that were asked earlier.
	Before []string `json:"before,omitempty"`
	// Verdict is balance, reject, drop, answer (of ICMP echo) or pass (left alone); Reason is one of Reasons,
	// and Why the same in words.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Why     string `json:"why"`
	// Rules are those of docs/semantics.md that decide.
	Rules []string `json:"rules,omitempty"`
	// Service is namespace/name, Frontend its address that was asked; nil for none.
	Service  string    `json:"service,omitempty"`
	Frontend *Frontend `json:"frontend,omitempty"`
	// Class is from where the client asks.
	Class string `json:"class,omitempty"`
	// Backends are the set, Backend the one chosen of it; nil if that is by chance.
	Backends []Member `json:"backends,omitempty"`
	Backend  *Member  `json:"backend,omitempty"`
	// Affinity is kept, or new if there is session affinity and nothing is remembered.
	Affinity string `json:"affinity,omitempty"`
	// Flow is the state of the flow if it is known already.
	Flow string `json:"flow,omitempty"`
	Asks Ends   `json:"asks"`
	// Becomes are the ends after the rewrite.
	Becomes *Ends `json:"becomes,omitempty"`
	// Encapsulated says how the packet gets to a backend that answers the client itself
	// (DSR); nil: not so.
	Encapsulated *Encapsulation `json:"encapsulated,omitempty"`
	Out          *Hop           `json:"out,omitempty"`
	// Notes say what else there is to know.
	Notes []string `json:"notes,omitempty"`
}

// Ends are those of a packet.
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

// Encapsulation is what is put around a packet, or into it.
type Encapsulation struct {
	// DSR is ipip, geneve or opt. Of the last the packet has an option, and no outer header.
	DSR string `json:"dsr"`
	// Source and Destination are those of the outer header; not valid: there is none.
	Source      netip.Addr `json:"source,omitzero"`
	Destination netip.Addr `json:"destination,omitzero"`
}

func (e *Encapsulation) String() string {
	switch e.DSR {
	case dsrNames[datapath.DSRIPIP]:
		return fmt.Sprintf("IPIP, %s > %s", e.Source, e.Destination)
	case dsrNames[datapath.DSRGeneve]:
		return fmt.Sprintf("Geneve, %s > %s", e.Source, e.Destination)
	}
	return "with what was asked in an option of the packet"
}

// Hop is where a packet goes next.
type Hop struct {
	Device  string     `json:"device"`
	NextHop netip.Addr `json:"nextHop"`
	MAC     string     `json:"mac,omitempty"` // none: not known yet
}

// Explain answers a question over the pinned tables of a bpffs directory, in the
// node's network namespace. It changes nothing.
//
// Errors: *QuestionError for what the question is to say in another way.
func Explain(bpffs string, q Question) (*Answer, error) {
	raw, err := datapath.OpenTables(bpffs)
	if err != nil {
		return nil, err
	}
	other, err := datapath.OtherNamespace(bpffs)
	if err != nil {
		return nil, err
	}
	if other {
		return nil, wrong("this command runs in another network namespace than the agent of %s, and sees other devices and routes: "+
			"run it there, as in `nsenter --net=/proc/PID/ns/net beeline explain ...` with the PID of that agent", bpffs)
	}
	tables, err := ReadTables(raw)
	if err != nil {
		return nil, err
	}
	x := &explainer{bpffs: bpffs, raw: raw, tables: tables, question: q}
	x.answer.Asks = Ends{q.Source, q.Destination, q.Protocol}
	if q.Socket {
		err = x.socket()
	} else {
		err = x.packet()
	}
	return &x.answer, err
}

type explainer struct {
	bpffs    string
	raw      *datapath.Tables
	tables   *Tables
	question Question
	answer   Answer
}

func (x *explainer) note(format string, args ...any) {
	x.answer.Notes = append(x.answer.Notes, fmt.Sprintf(format, args...))
}

// frontend finds what a key leads to.
func (x *explainer) frontend(key datapath.FrontendKey) (*Service, *Frontend) {
	for i := range x.tables.Services {
		s := &x.tables.Services[i]
		for j := range s.Frontends {
			if s.Frontends[j].key == key {
				return s, &s.Frontends[j]
			}
		}
	}
	return nil, nil
}

// asked notes whose address was asked, and what the client's class meets there.
func (x *explainer) asked(s *Service, f *Frontend, class service.SourceClass) Decision {
	x.answer.Service, x.answer.Frontend, x.answer.Class = s.Namespace+"/"+s.Name, f, class.String()
	d := [...]Decision{service.FromPod: f.Pod, service.FromNode: f.Node, service.FromOutside: f.Outside}[class]
	x.answer.Backends = d.Backends
	return d
}

// remembered is the backend that session affinity has for a client; 0: none that
// holds.
func (x *explainer) remembered(f *Frontend, d Decision, client datapath.Address) (uint32, error) {
	if f.AffinitySeconds == 0 {
		return 0, nil
	}
	entry, err := x.raw.Affinity.Get(datapath.AffinityKey{Client: client, Service: f.ServiceID})
	if err != nil {
		return 0, err
	}
	if entry == nil || int32(coarseSeconds()-entry.LastUsed) > int32(f.AffinitySeconds) ||
		!slices.ContainsFunc(d.Backends, func(m Member) bool { return m.ID == entry.Backend }) {
		return 0, nil
	}
	return entry.Backend, nil
}

// coarseSeconds is the clock of session affinity.
func coarseSeconds() uint32 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now) // fails only for clocks that do not exist
	return uint32(now.Sec)
}

// ownAddress says whether an address is of the calling thread's network namespace.
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

// rulesOf are the rules that decide what a client meets at a frontend.
func rulesOf(f *Frontend, class service.SourceClass, d Decision, reason string) (rules []string) {
	switch {
	case reason == "drop_unused" || f != nil && f.Kind == service.ClusterIPOther:
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
		// With eTP Cluster all are masqueraded at such an address (R19).
		if !f.Outside.Masquerade {
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
