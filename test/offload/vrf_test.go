// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
)

// networkVRF is that of the client behind a device of a VRF. It is also the VRF's table of routes.
const networkVRF = 18

// vrf connects the client by a device of a VRF, whose routes lead to the server by a device that is in none. It
// reports whether the kernel has VRFs; those of scripts/kernels do. The device gets its addresses in the VRF: the
// kernel deletes those of IPv6 when it is added.
func (w *world) vrf() bool {
	w.t.Helper()
	if out, err := w.host("router").Command(w.t.Context(), strings.Fields(fmt.Sprintf("ip link add red type vrf table %d", networkVRF))...).CombinedOutput(); err != nil {
		if os.Getenv("BEELINE_OWN_MACHINE") != "" {
			w.t.Fatalf("a VRF: %s", out)
		}
		return false
	}
	far := w.wire("client", "red0", 100+networkVRF)
	w.ip("router", "link set red up", "link set red0 master red")
	w.addresses("red0", far, networkVRF)
	w.ip("router", each(func(f family) string {
		return fmt.Sprintf("route add %s dev br0 table %d", f.prefix(networkServer), networkVRF)
	})...)
	w.ip("router", each(func(f family) string {
		return fmt.Sprintf("route add %s via %s dev br0 table %d", f.prefix(networkTargets), f.address(networkServer, 2), networkVRF)
	})...)
	w.ip("router", each(func(f family) string {
		client := f.address(networkVRF, 2)
		return fmt.Sprintf("route add %s dev red0", netip.PrefixFrom(client, client.BitLen()))
	})...)
	return true
}

// inVRF: the stack takes packets for those of the VRF, and so do its rules.
func (w *world) inVRF() {
	for _, f := range families {
		w.connections(networkVRF, both, f)
		w.datagrams(networkVRF, plain, f)
	}
	f := w.openFrom(networkVRF, "udp", plain, 0)
	w.nft(fmt.Sprintf(`table inet vrf { chain forward { type filter hook forward priority 2; iifname "red" udp dport %d limit rate 100000/second accept; }; }`, f.port))
	defer w.nft("delete table inet vrf")
	time.Sleep(soon)
	f.wantStack()
}
