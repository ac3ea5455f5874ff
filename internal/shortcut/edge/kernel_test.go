// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
)

// The ports that the kernel may choose for a socket are those of UDP in its range that are not reserved.
func TestAutobound(t *testing.T) {
	local := node.LocalPorts{First: 32768, Last: 60999, Reserved: map[uint16]bool{40000: true}}
	port := func(protocol uint8, number uint16) bpf.ReservedPort {
		return bpf.ReservedPort{Port: bpf.NetworkOrder(number), Protocol: protocol, IpVersion: 4}
	}
	served := []bpf.ReservedPort{port(unix.IPPROTO_UDP, 30053), port(unix.IPPROTO_UDP, 40000), port(unix.IPPROTO_UDP, 40002), port(unix.IPPROTO_UDP, 40001),
		port(unix.IPPROTO_TCP, 40005), port(unix.IPPROTO_UDP, 50000), port(unix.IPPROTO_UDP, 61000)}
	if got, want := autobound(local, slices.Values(served)), "40001-40002,50000"; got != want {
		t.Errorf("autobound() = %q, want %q", got, want)
	}
	var many []bpf.ReservedPort
	for number := uint16(35001); number < 36000; number += 2 {
		many = append(many, port(unix.IPPROTO_UDP, number))
	}
	if got, want := autobound(local, slices.Values(many)), "35001-35999"; got != want {
		t.Errorf("autobound() of many ports = %q, want %q", got, want)
	}
	if got := autobound(local, slices.Values[[]bpf.ReservedPort](nil)); got != "" {
		t.Errorf("autobound() of none = %q", got)
	}
}
