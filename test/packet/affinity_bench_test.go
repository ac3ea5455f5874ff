// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// BenchmarkAffinity times the first packets of flows at XDP, for a Service without session affinity, and with
// it: for clients with an entry, new clients, and new clients while the table is full.
func BenchmarkAffinity(b *testing.B) {
	const flows = 16384 // of each case, and number of returning clients
	w := newWorld(b, limits{tracks: 1 << 19})
	w.apply(b, w.scene())
	for _, c := range []struct {
		name    string
		port    uint16
		before  int // clients before the measurement
		clients int // number of clients, in turn
		first   uint32
	}{
		{"without", toRemote, 0, flows, 0},
		{"kept", sticky, flows, flows, 0},
		{"kept, one client", sticky, 1, 1, 0},
		{"new", sticky, 0, flows, 0},
		{"new, the table is full", sticky, recordSize * 3 / 2, flows, 1 << 20},
	} {
		b.Run(c.name, func(b *testing.B) {
			w.enter(b)
			w.forget(b)
			frame := func(client uint32, port uint16) []byte {
				p := families[0].question(tcp, c.port)
				p.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 44<<24|client))), port)
				return p.frame(b)
			}
			for n := range c.before {
				w.run(b, atXDP, frame(uint32(n), 2000))
			}
			frames := make([][]byte, flows)
			for i := range frames {
				frames[i] = frame(c.first+uint32(i%c.clients), uint16(2001+i/c.clients))
			}
			times := make([]time.Duration, flows)
			for i, f := range frames { // each flow is new only once, whatever b.N is
				times[i], _ = w.timed(b, f)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[flows/2].Nanoseconds()), "ns/packet") // the median: others use the machine, too
		})
	}
}
