// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// Question is what to explain: the first packet of a client, or its connect().
type Question struct {
	Source      netip.AddrPort // port 0: any
	Destination netip.AddrPort
	Protocol    service.Protocol
	// Device that the packet comes in by; empty: the one that leads to the source.
	Device string
	// Socket asks for the connect() of a process of this node or of a pod here.
	Socket bool
}

// ParseQuestion reads ADDRESS[:PORT], and ADDRESS:PORT with /tcp, /udp or /sctp, TCP if
// with neither, or ADDRESS/icmp; names of protocols in any case.
func ParseQuestion(source, destination string) (q Question, err error) {
	if q.Source, err = parseSource(source); err != nil {
		return q, err
	}
	text, protocol, _ := strings.Cut(destination, "/")
	switch strings.ToLower(protocol) {
	case "", "tcp":
		q.Protocol = service.TCP
	case "udp":
		q.Protocol = service.UDP
	case "sctp":
		q.Protocol = service.SCTP
	case "icmp":
		q.Protocol = service.ICMP
	default:
		return q, fmt.Errorf("%s: %q is neither tcp, udp, sctp nor icmp", destination, protocol)
	}
	if q.Protocol == service.ICMP {
		err = q.parseEcho(text)
	} else if q.Destination, err = netip.ParseAddrPort(text); err != nil || q.Destination.Port() == 0 {
		err = fmt.Errorf("%s: not ADDRESS:PORT such as 192.0.2.1:80/tcp or [2001:db8::1]:53/udp", destination)
	}
	if err != nil {
		return q, err
	}
	q.Destination = netip.AddrPortFrom(q.Destination.Addr().Unmap(), q.Destination.Port())
	for _, a := range []netip.Addr{q.Source.Addr(), q.Destination.Addr()} {
		if a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			return q, fmt.Errorf("%s: not the address of one host", a)
		}
	}
	if q.Source.Addr().Is4() != q.Destination.Addr().Is4() {
		return q, fmt.Errorf("%s and %s are of different families", q.Source.Addr(), q.Destination.Addr())
	}
	return q, nil
}

// parseEcho is for an echo request, which has no ports.
func (q *Question) parseEcho(destination string) error {
	a, err := netip.ParseAddr(destination)
	if err != nil {
		return fmt.Errorf("%s/icmp: not ADDRESS/icmp such as 192.0.2.1/icmp", destination)
	}
	q.Source, q.Destination = netip.AddrPortFrom(q.Source.Addr(), 0), netip.AddrPortFrom(a, 0)
	if a.Unmap().Is6() {
		q.Protocol = service.ICMPv6
	}
	return nil
}

func parseSource(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	p, err := netip.ParseAddrPort(text)
	if err != nil || p.Port() == 0 {
		return p, fmt.Errorf("%s: not ADDRESS or ADDRESS:PORT such as 198.51.100.7 or [2001:db8::7]:40000", text)
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()), nil
}

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

// QuestionError is a question that has no answer as it stands.
type QuestionError struct{ text string }

func (e *QuestionError) Error() string { return e.text }

// NewQuestionError is for a client of what found the question wrong.
func NewQuestionError(text string) *QuestionError { return &QuestionError{text} }

func wrong(format string, args ...any) error { return &QuestionError{fmt.Sprintf(format, args...)} }

// Explain answers a question over the pinned tables of a bpffs directory, in the
// node's network namespace. It changes nothing.
//
// Errors: *QuestionError for what the question is to say in another way.
func Explain(bpffs string, q Question) (*Answer, error) {
	raw, err := datapath.OpenTables(bpffs)
	if err != nil {
		return nil, err
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
	all, err := x.raw.Affinity.All()
	if err != nil {
		return 0, err
	}
	entry, ok := all[datapath.AffinityKey{Client: client, Service: f.ServiceID}]
	if !ok || int32(coarseSeconds()-entry.LastUsed) > int32(f.AffinitySeconds) ||
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
