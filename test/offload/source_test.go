// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"time"
)

// sourceMoved has the route to a client lead to another device than its packets arrive by, or to the router itself.
// With rp_filter=1 the stack drops them in the first case (IPv4), always in the second; otherwise the server receives
// them.
func (w *world) sourceMoved() {
	w.t.Helper()
	defer w.sysctl("router", "ipv4/conf/all/rp_filter=0")
	for _, of := range families {
		client := of.address(networkClient, 2)
		away := fmt.Sprintf("route %%s %s/%d dev x0", client, client.BitLen())
		own := fmt.Sprintf("addr %%s %s/%d dev lo", client, client.BitLen())
		for _, c := range []struct {
			filter   int
			command  string
			receives bool
		}{{0, away, true}, {1, away, of == 1}, {2, away, true}, {0, own, of == 1}} {
			w.sysctl("router", fmt.Sprintf("ipv4/conf/all/rp_filter=%d", c.filter))
			f := w.open("udp", plain, of)
			w.settle(f)
			w.ip("router", fmt.Sprintf(c.command, "add"))
			w.within(soon*load, fmt.Sprintf("%s, rp_filter=%d, %s: the server receives packets: %t", f, c.filter, c.command, c.receives), func() bool {
				return f.receives() == c.receives
			})
			w.ip("router", fmt.Sprintf(c.command, "del"))
			f.continues(5 * soon * load)
			w.settle(f)
		}
	}
}

// receives reports whether the server receives any of some packets, whose answers the client may miss.
func (f *flow) receives() bool {
	before := f.udp.received.Load()
	for range 10 {
		_ = f.exchangeWithin(1, 10*time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	return f.udp.received.Load() > before
}
