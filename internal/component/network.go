// SPDX-License-Identifier: Apache-2.0

package component

import (
	"net/netip"
	"strings"
)

// ParseNetwork parses a network of either family. It converts IPv4-mapped IPv6 to IPv4, and clears host bits.
func ParseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return p, err
	}
	if p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), max(p.Bits()-96, 0))
	}
	return p.Masked(), nil
}
