// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// A node accepts what other nodes have encapsulated. A client's packet leaves in the node's name if the backend
// is remote (SNAT): so it must not look as if the node had encapsulated it, whatever port of the backend a
// Service has.
func TestNoClientPassesForBalancer(t *testing.T) {
	const toGeneve, geneve = 61, 6081
	w := newWorld(t, limits{})
	tables := w.dsrScene()
	for i, f := range families {
		id := uint32(28 + i)
		tables.Backends[id] = model.Backend{Address: f.remote, Port: geneve, Node: f.node}
		d := model.Decision{Slots: []uint32{id}}
		tables.Frontends[model.FrontendKey{Address: f.vip, Port: toGeneve, Protocol: udp}] = model.Frontend{Service: toGeneve, Pod: d, Outside: d}
	}
	w.apply(t, tables)
	for _, at := range []hook{atXDP, atIngress} {
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s", at, f.name), func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				inside := f.fromBalancer(f.question(udp, toMany+uint16(model.Geneve)), on(f.remote, targetPort))
				headers := 14 + 20 + 8
				if f.own.Is6() {
					headers += 20
				}
				question := f.question(udp, toGeneve)
				for range 2 {
					question.payload = wrapGeneve(t, f, inside)[headers:]
					w.drops(t, at, question.frame(t), model.DropSpoofed)
					question.payload = []byte("other packets to this port pass")
					got := w.run(t, at, question.frame(t))
					if got.Action != model.ActionSend {
						t.Errorf("another datagram: action %v", got.Action)
					} else if ends, _ := model.Ends(got.Frame); ends.Source != f.own || ends.DestinationPort != geneve {
						t.Errorf("another datagram became %v", ends)
					}
				}
			})
		}
	}
}
