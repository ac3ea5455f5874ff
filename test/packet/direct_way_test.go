// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// narrowWay is the path to the backend with a small MTU.
func (f family) narrowWay(dsr model.DSR) way {
	return way{dsr, f.own, f.narrow, on(f.narrow, targetPort)}
}

// A packet that does not fit with its encapsulation gets a "too big" with the MTU that leaves room for it (RFC
// 1191, RFC 8201).
func TestDirectTooBig(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		question := f.question(protocol, direct(toNarrow, dsr))
		question.from, question.dontFragment, question.flags = on(f.narrowClient, clientPort), true, ack
		fits := narrowMTU - overhead(f, dsr)
		for range 2 { // the first packet, and one of a known flow
			for _, size := range []int{fits + 1, narrowMTU, 2000} {
				p := question.sized(t, size)
				before := w.counts(t)
				w.leaves(t, at, p.frame(t), model.ActionSend, p.icmpAnswer(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, uint32(fits)))
				w.counted(t, before, model.DropTooBig)
			}
			p := question.sized(t, fits)
			w.leaves(t, at, p.frame(t), model.ActionSend, f.narrowWay(dsr).sent(t, at, p, nodeBMAC))
		}
	})
}

// The same of a route's MTU below its device's. It counts before the hop limit is decremented, unlike without
// encapsulation.
func TestDirectTooBigForRoute(t *testing.T) {
	w := newScene(t)
	const routeMTU = 1400
	w.put(t, bpf.EdgeTCMapRoutings, uint32(0), bpf.Routing{
		LeastMtu4: routeMTU, LeastMtu6: routeMTU, Flags: bpf.RouteMTUsMissing | bpf.RouteIgnoresPMTU,
	})
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		question := f.question(protocol, direct(toRemote, dsr))
		question.dontFragment, question.flags, question.hops = true, ack, 64
		fits := routeMTU - overhead(f, dsr)
		for range 2 { // the first packet, and one of a known flow
			p := question.sized(t, fits+1)
			w.leaves(t, at, p.frame(t), model.ActionSend, p.icmpAnswer(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, uint32(fits)))
			p = question.sized(t, fits)
			w.leaves(t, at, p.frame(t), model.ActionSend, f.way(dsr).sent(t, at, p, nodeBMAC))
		}
	})
}

// RFC 791 section 3.2: a packet that may be fragmented is, before the encapsulation, into fragments that fit
// with it; no outer packet is a fragment.
func TestDirectFragmented(t *testing.T) {
	w := newScene(t)
	f := families[0]
	for _, dsr := range encapsulations {
		for _, protocol := range []uint8{tcp, udp} {
			for _, size := range []int{narrowMTU - overhead(f, dsr) + 1, narrowMTU, 3000} {
				w.forget(t)
				question := f.question(protocol, direct(toNarrow, dsr))
				question.from, question.flags = on(f.narrowClient, clientPort), ack
				question = question.big(t, size)
				w.ignores(t, atXDP, question.frame(t))
				pieces := w.cut(t, question.frame(t))
				for i, sent := range w.through(t, pieces) {
					piece := slices.Clone(pieces[i][:14+length(pieces[i])])
					piece[22]-- // TTL
					piece = withFlags(piece, piece[20]&0xe0)
					if len(sent) > 14+narrowMTU || len(sent) != len(piece)+overhead(f, dsr) {
						t.Fatalf("%s: fragment %d of %d bytes became %d", encapsulationNames[dsr], i, len(piece), len(sent))
					}
					if dsr == model.Opt {
						continue // TestModel compares each byte
					}
					want := f.narrowWay(dsr).around(t, piece, question.hash())
					if want = want[:14+length(want)]; !w.sent(sent, want) { // without padding
						t.Fatalf("%s: fragment %d became\n%x\nwant\n%x", encapsulationNames[dsr], i, sent, want)
					}
				}
			}
		}
	}
}

// Each fragment of a datagram that arrives in fragments is encapsulated.
func TestDirectFragments(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
		question.payload = bytes.Repeat([]byte("0123456789"), 30)
		parts := question.fragments(t, 0x77, 64)
		w.drops(t, at, parts[1], model.DropFragment)
		leaving := question.forwarded(at, question.from, question.to, nodeBMAC)
		if dsr == model.Opt {
			leaving = question.forwarded(at, question.from, way.backend, nodeBMAC)
		}
		for i, want := range leaving.fragments(t, 0x77, 64) {
			if dsr == model.Opt {
				want = withOptionBytes(want, question.to)
			} else {
				want = way.around(t, want, question.hash())
			}
			w.leaves(t, at, parts[i], model.ActionSend, want)
		}
	})
}

// withOptionBytes inserts the option with the original destination into a frame.
func withOptionBytes(frame []byte, asked netip.AddrPort) []byte {
	port := []byte{byte(asked.Port() >> 8), byte(asked.Port())}
	if asked.Addr().Is4() {
		frame = slices.Insert(slices.Clone(frame), 34, slices.Concat([]byte{158, 8}, port, asked.Addr().AsSlice())...)
		frame[14] += 2
		n := length(frame) + 8
		frame[16], frame[17] = byte(n>>8), byte(n)
		frame[24], frame[25] = 0, 0
		sum := checksum(0, frame[14:42])
		frame[24], frame[25] = byte(sum>>8), byte(sum)
		return frame
	}
	header := slices.Concat([]byte{frame[20], 2, 0x5e, 18}, port, asked.Addr().AsSlice(), []byte{1, 0})
	frame = slices.Insert(slices.Clone(frame), 54, header...)
	frame[20] = 60
	n := int(frame[18])<<8 + int(frame[19]) + 24
	frame[18], frame[19] = byte(n>>8), byte(n)
	return frame
}

// Options and extension headers are kept. DSR's option comes first; if an IPv4 header has no room for it, the
// packet is dropped.
func TestDirectOptions(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		for words := 1; words <= 10; words++ {
			question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
			question.payload = make([]byte, 40)
			if f.client.Is4() {
				question.ipOptions = []layers.IPv4Option{{OptionType: 0x94, OptionLength: uint8(4 * words), OptionData: make([]byte, 4*words-2)}}
			} else {
				question.extension, question.extensions = routing, [][]byte{routingHeader(0, words, 0)}
			}
			if f.client.Is4() && dsr == model.Opt && words > 8 {
				w.drops(t, at, question.frame(t), model.DropRewriteFailed)
				continue
			}
			w.leaves(t, at, question.frame(t), model.ActionSend, way.sent(t, at, question, nodeBMAC))
		}
	})
}

// UDP without a checksum (IPv4) keeps none inside.
func TestDirectWithoutChecksum(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		if protocol == tcp || f.client.Is6() {
			return
		}
		question := f.question(udp, direct(toRemote, dsr))
		question.noChecksum, question.payload = true, make([]byte, 30)
		w.leaves(t, at, question.frame(t), model.ActionSend, f.way(dsr).sent(t, at, question, nodeBMAC))
	})
}

// A jumbo frame reaches XDP in several buffers; the outer header goes into the first.
func TestDirectJumboFrames(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		for _, size := range []int{3400, 4000, 8900} {
			if at == atIngress && size > 3400 {
				continue // test runs at tc have one page (Linux 6.18)
			}
			question := f.question(protocol, direct(toRemote, dsr))
			question.flags = ack
			question = question.big(t, size)
			w.leaves(t, at, question.frame(t), model.ActionSend, f.way(dsr).sent(t, at, question, nodeBMAC))
		}
	})
}

// A packet's last hop ends here, and leaves no entry. A missing route or source address is counted as such.
// What XDP cannot send it leaves to tc, unchanged.
func TestDirectNoWay(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		last := f.question(protocol, direct(toRemote, dsr))
		last.hops = 1
		before := w.counts(t)
		w.leaves(t, at, last.frame(t), model.ActionSend, last.icmpAnswer(t, last.to.Addr(), [2]uint8{11, 0}, [2]uint8{3, 0}, 0))
		w.counted(t, before, model.TTLExceeded)
		w.loses(t, f.noRoute, bpf.LostWithoutRoute, 1, f.noRoute, func() {
			w.answersWithoutRoute(t, at, f.question(protocol, direct(toNoRoute, dsr)))
		})
		if dsr != model.Opt {
			w.loses(t, f.noAddress, bpf.LostWithoutAddress, 1, f.noAddress, func() {
				w.drops(t, at, f.question(protocol, direct(toNoAddress, dsr)).frame(t), model.DropNoAddress)
			})
		}
		w.remembersNothing(t)
		for port, backend := range map[uint16]netip.Addr{toEth1: f.behindEth1, toNoNeighbour: f.noNeighbour} {
			question := f.question(protocol, direct(port, dsr))
			if at == atXDP {
				before := w.counts(t)
				w.ignores(t, at, question.frame(t))
				w.counted(t, before, model.ToTC)
				w.remembersNothing(t)
				continue
			}
			device := "eth0"
			if port == toEth1 {
				device = "eth1"
			}
			own := w.tables().Devices[w.index[device]][0]
			if f.client.Is6() {
				own = w.tables().Devices[w.index[device]][1]
			}
			way := way{dsr, own, backend, on(backend, targetPort)}
			w.leaves(t, at, question.frame(t), model.ActionSend, way.sent(t, at, question, nodeBMAC))
		}
	})
}

// Replies to a pod elsewhere, or to the backend's own node, bypass the device that would give them the
// Service's address, so these clients are served with the balancer's address as the source (R19). A backend of
// this node gets its packets as usual.
func TestDirectForClientsOutside(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		for _, client := range []netip.Addr{f.pod, f.node} {
			w.forget(t)
			question := f.question(protocol, direct(toRemote, dsr))
			question.from = on(client, clientPort)
			own := on(f.own, w.snatPort(t, at, question.frame(t)))
			w.sends(t, at, question.frame(t), question.forwarded(at, own, on(f.remote, targetPort), nodeBMAC))
			answer := reply(on(f.remote, targetPort), own, protocol)
			w.sends(t, at, answer.frame(t), answer.forwarded(at, question.to, question.from, nodeBMAC))
		}
		local := f.question(protocol, direct(toLocal, dsr))
		w.passes(t, at, local.frame(t), local.translated(local.from, on(f.local, targetPort)))
	})
}

// The next hop of outer packets is cached for a short time only: changes take effect soon after.
func TestDirectWayChanges(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	moved := [6]byte{2, 0, 0, 0, 0, 0x1b}
	for _, f := range families {
		for _, dsr := range encapsulations {
			question, way := f.question(tcp, direct(toRemote, dsr)), f.way(dsr)
			set := func(mac [6]byte) {
				t.Helper()
				must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: int(w.index["eth0"]), State: netlink.NUD_PERMANENT,
					IP: f.node.AsSlice(), HardwareAddr: mac[:]}))
			}
			for _, mac := range [][6]byte{nodeBMAC, moved, nodeBMAC} {
				set(mac)
				want := way.sent(t, atXDP, question, mac)
				for end := time.Now().Add(time.Minute); !bytes.Equal(w.run(t, atXDP, question.frame(t)).Frame, want); {
					if time.Now().After(end) {
						t.Fatalf("%s, %s: a minute after the neighbour's address changed to %x, packets do not go there", f.name, encapsulationNames[dsr], mac)
					}
					time.Sleep(time.Millisecond)
				}
			}
		}
	}
}
