// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
)

// An IP option has no outer header.
func TestEncapsulation(t *testing.T) {
	e := &bpf.Explanation{}
	e.OuterSource.Bytes, e.OuterDestination.Bytes = netip.MustParseAddr("192.0.2.1").As16(), netip.MustParseAddr("10.10.2.11").As16()
	if got := encapsulation(e); got != nil {
		t.Errorf("without DSR: %v", got)
	}
	for kind, want := range map[bpf.DSR]string{
		bpf.DSRIPIP:   "IPIP, 192.0.2.1 > 10.10.2.11",
		bpf.DSRGeneve: "Geneve, 192.0.2.1 > 10.10.2.11",
		bpf.DSROpt:    "with the original destination in an IP option",
	} {
		e.Dsr = uint32(kind)
		if got := encapsulation(e).String(); got != want {
			t.Errorf("%d: %q, want %q", kind, got, want)
		}
	}
}
