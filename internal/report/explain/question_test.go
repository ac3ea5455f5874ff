// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// Protocols may be written as status and manifests print them.
func TestProtocolsInAnyCase(t *testing.T) {
	for destination, want := range map[string]service.Protocol{
		"192.0.2.1:80": service.TCP, "192.0.2.1:80/tcp": service.TCP, "192.0.2.1:80/TCP": service.TCP, "192.0.2.1:53/UDP": service.UDP,
		"192.0.2.1:80/Sctp": service.SCTP, "192.0.2.1/ICMP": service.ICMP, "[2001:db8::1]:53/Udp": service.UDP, "2001:db8::1/ICMP": service.ICMPv6,
	} {
		source := "198.51.100.7"
		if destination[0] != '1' {
			source = "2001:db8::7"
		}
		if q, err := ParseQuestion(source, destination); err != nil || q.Protocol != want {
			t.Errorf("%s: %v, %v, want %v", destination, q.Protocol, err, want)
		}
	}
}
