// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"

	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/shared"
)

// TestOverheads: the MTU figures count the bytes that the programs add to a packet (dsr_overhead in
// bpf/encap/encap.h).
func TestOverheads(t *testing.T) {
	p := shared.Load(t)
	for _, kind := range []service.DSR{"", service.DSRIPIP, service.DSRGeneve, service.DSROpt} {
		for is6, family := range []service.Family{service.IPv4, service.IPv6} {
			c := shared.Call{Dsr: uint32(codec.DSRKind(kind)), IsV6: uint8(is6), Sets: 1, Slots: 1}
			p.Run(&c)
			if got := overhead(kind, family); got != int(c.Overhead) {
				t.Errorf("%q, IPv%d: Go counts %d bytes, C %d", kind, family, got, c.Overhead)
			}
		}
	}
}
