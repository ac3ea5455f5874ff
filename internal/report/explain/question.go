// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"beeline.io/beeline/internal/cluster/service"
)

// Question selects what to explain: the first packet of a client, or its connect().
type Question struct {
	Source      netip.AddrPort // port 0: any
	Destination netip.AddrPort
	Protocol    service.Protocol
	// Device receives the packet; empty for the device of the route to the source.
	Device string
	// Socket selects the connect() of a process of this node or of a local pod.
	Socket bool
}

// ParseQuestion parses a source ADDRESS[:PORT], and a destination ADDRESS:PORT[/PROTOCOL] or
// ADDRESS/icmp. PROTOCOL is tcp (the default), udp or sctp, in any case.
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
			return q, fmt.Errorf("%s: not a unicast address", a)
		}
	}
	if q.Source.Addr().Is4() != q.Destination.Addr().Is4() {
		return q, fmt.Errorf("%s and %s are of different families", q.Source.Addr(), q.Destination.Addr())
	}
	return q, nil
}

// parseEcho parses the destination of an echo request, which has no ports.
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
