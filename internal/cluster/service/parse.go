// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	netutils "k8s.io/utils/net"
)

// parseAddr parses an address in the legacy forms that Kubernetes accepts: with surrounding white space, and
// with leading zeros in decimal numbers (R8). It converts IPv4-mapped IPv6 to IPv4, and rejects zones.
func parseAddr(s string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(strings.TrimSpace(s)))
	return a.Unmap(), ok
}

// parsePrefix parses a CIDR in the same forms and clears its host bits.
func parsePrefix(s string) (netip.Prefix, bool) {
	addr, length, found := strings.Cut(strings.TrimSpace(s), "/")
	a, ok := parseAddr(addr)
	bits, err := strconv.ParseUint(length, 10, 8)
	if !found || !ok || err != nil {
		return netip.Prefix{}, false
	}
	if a.Is4() && strings.Contains(addr, ":") {
		if bits < 96 {
			return netip.Prefix{}, false
		}
		bits -= 96
	}
	p := netip.PrefixFrom(a, int(bits)).Masked()
	return p, p.IsValid()
}

// familyOfPrefix returns the family of a prefix.
func familyOfPrefix(p netip.Prefix) Family { return FamilyOf(p.Addr()) }

// fieldErrors collects the errors in the fields of one object.
type fieldErrors struct{ errs []error }

// longestValue is how much of a value an error shows, in octets. Objects may contain much longer ones, and the log
// and the status repeat the error.
const longestValue = 100

// add adds an error with the field, its value and the expected values.
func (e *fieldErrors) add(field string, value any, expected string) {
	e.errs = append(e.errs, fmt.Errorf("%s: %s: expected %s", field, abbreviate(fmt.Sprintf("%#v", value)), expected))
}

// abbreviate cuts long text.
func abbreviate(text string) string {
	if len(text) <= longestValue {
		return text
	}
	return fmt.Sprintf("%s... (%d octets)", strings.ToValidUTF8(text[:longestValue], ""), len(text))
}

func (e *fieldErrors) join() error { return errors.Join(e.errs...) }

// addr parses an address. It ignores an empty one without an error, because the API has accepted such values.
func (e *fieldErrors) addr(field, value string) (netip.Addr, bool) {
	if strings.TrimSpace(value) == "" {
		return netip.Addr{}, false
	}
	a, ok := parseAddr(value)
	if !ok {
		e.add(field, value, "an IPv4 or IPv6 address")
		return netip.Addr{}, false
	}
	if a.IsUnspecified() || a.IsMulticast() {
		e.add(field, value, "a unicast address")
		return netip.Addr{}, false
	}
	return a, true
}

// endpointAddr parses an address that Kubernetes admits as an endpoint's or an external IP
// (ValidateEndpointIP of Kubernetes 1.36; manifests and old objects may have others). A loopback address would lead
// to programs of whatever node the client is on, a link-local one to what only nodes may reach, such as a cloud's
// metadata.
func (e *fieldErrors) endpointAddr(field, value string) (netip.Addr, bool) {
	a, ok := e.serviceAddr(field, value)
	if ok && a.IsLinkLocalUnicast() {
		e.add(field, value, "an address that is not link-local")
		return netip.Addr{}, false
	}
	return a, ok
}

// serviceAddr parses an address of a Service. It rejects loopback addresses, because a Service
// there would intercept local connections of every process.
func (e *fieldErrors) serviceAddr(field, value string) (netip.Addr, bool) {
	a, ok := e.addr(field, value)
	if ok && a.IsLoopback() {
		e.add(field, value, "an address that is not a loopback address")
		return netip.Addr{}, false
	}
	return a, ok
}

// prefixes parses a list of CIDRs, and omits invalid ones.
func (e *fieldErrors) prefixes(field string, values []string) []netip.Prefix {
	var ps []netip.Prefix
	for i, v := range values {
		if strings.TrimSpace(v) == "" {
			continue
		}
		p, ok := parsePrefix(v)
		if !ok {
			e.add(fmt.Sprintf("%s[%d]", field, i), v, "a CIDR such as 192.0.2.0/24 or 2001:db8::/32")
			continue
		}
		ps = append(ps, p)
	}
	return ps
}

// port validates a port number; zero means none and is left to the caller.
func (e *fieldErrors) port(field string, value int32) uint16 {
	if value < 0 || value > 65535 {
		e.add(field, value, "a port from 1 to 65535")
		return 0
	}
	return uint16(value)
}

// protocol parses a protocol; empty means TCP, the API's default.
func (e *fieldErrors) protocol(field, value string) (Protocol, bool) {
	switch value {
	case "", "TCP":
		return TCP, true
	case "UDP":
		return UDP, true
	case "SCTP":
		return SCTP, true
	}
	e.add(field, value, "TCP, UDP or SCTP")
	return 0, false
}
