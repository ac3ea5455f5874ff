// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// Networks of the client behind tunnels of the kernel.
const (
	networkIPIP         = 14
	networkIPIPExternal = 15
	networkTap          = 16
	networkTapExternal  = 17
)

// A tunnel leads from the client's second or third address to the router's.
type tunnel struct {
	name     string
	device   string
	network  int
	kind     string // as ip(8) knows it
	far      int    // the client's address outside the tunnel
	external bool   // at the router
	key      bool
	families []family
}

var tunnels = []tunnel{
	{"IPIP", "ti14", networkIPIP, "ipip", 2, false, false, families[:1]},
	{"IPIP, external", "ti15", networkIPIPExternal, "ipip", 3, true, false, families[:1]},
	{"GRE tap", "gt16", networkTap, "gretap", 2, false, true, families},
	{"GRE tap, external", "gt17", networkTapExternal, "gretap", 2, true, true, families},
}

// connect makes the tunnel. It reports whether the kernel has such; those of scripts/kernels do.
func (n *tunnel) connect(w *world) bool {
	w.t.Helper()
	router, client := family(0).address(networkClient, 1), family(0).address(networkClient, n.far)
	options := ""
	if n.key {
		options = fmt.Sprintf("key %d", n.network)
	}
	atRouter := fmt.Sprintf("local %s remote %s %s", router, client, options)
	if n.external {
		atRouter = "external"
	}
	if out, err := w.host("router").Command(w.t.Context(), strings.Fields(fmt.Sprintf("ip link add %s mtu 1400 type %s %s", n.device, n.kind, atRouter))...).CombinedOutput(); err != nil {
		if os.Getenv("BEELINE_OWN_MACHINE") != "" {
			w.t.Fatalf("%s: %s", n.name, out)
		}
		return false
	}
	w.ip("client", fmt.Sprintf("addr replace %s dev eth0", netip.PrefixFrom(client, 24)),
		fmt.Sprintf("link add %s mtu 1400 type %s local %s remote %s %s", n.device, n.kind, client, router, options))
	w.addresses(n.device, n.device, n.network)
	if n.external {
		n.routes(w, client)
	}
	return true
}

// routes have the router send to the client by a tunnel in external mode. IPv6 sends no solicitations by such a device.
func (n *tunnel) routes(w *world, client netip.Addr) {
	w.t.Helper()
	key := ""
	if n.key {
		key = fmt.Sprintf("id %d key", n.network)
		macs := []string{"02:00:00:00:17:01", "02:00:00:00:17:02"}
		for i, part := range []string{"router", "client"} {
			w.ip(part, fmt.Sprintf("link set %s address %s", n.device, macs[i]))
			for _, f := range n.families {
				w.ip(part, fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", f.address(n.network, 2-i), macs[1-i], n.device))
			}
		}
	}
	for _, f := range n.families {
		to := f.address(n.network, 2)
		w.ip("router", fmt.Sprintf("route add %s encap ip %s dst %s dev %s", netip.PrefixFrom(to, to.BitLen()), key, client, n.device))
	}
}

// inTunnels runs the cases of flows in each tunnel.
func (w *world) inTunnels(has map[string]bool) {
	for _, n := range tunnels {
		w.t.Run(n.name, func(t *testing.T) {
			if !has[n.name] {
				t.Skipf("the kernel has no %s devices", n.kind)
			}
			t.Parallel()
			w := w.in(t)
			for _, f := range n.families {
				w.connections(n.network, both, f)
				w.datagrams(n.network, plain, f)
			}
		})
	}
}
