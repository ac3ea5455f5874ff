// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// BenchmarkAffinity has XDP begin flows of clients that ask a Service without session affinity, or
// with it: that are remembered, that are new, and that are new while the table is full.
func BenchmarkAffinity(b *testing.B) {
	const flows = 16384 // of one case, and clients that are remembered
	w := newWorld(b, limits{tracks: 1 << 19})
	w.apply(b, w.scene())
	for _, c := range []struct {
		name    string
		port    uint16
		before  int // clients that have come
		clients int // that come, again and again
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
			for i, f := range frames { // each flow is new once, however long the benchmark is to take
				times[i], _ = w.timed(b, f)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[flows/2].Nanoseconds()), "ns/packet") // others use the machine, too
		})
	}
}
