// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// family is the addresses of one IP version.
type family struct {
	name                   string
	client                 netip.Addr
	pod                    netip.Addr // of node-b, as a client
	remote, local          netip.Addr // backends
	behindEth1             netip.Addr
	noNeighbour, noAddress netip.Addr
	noRoute                netip.Addr
	narrow, narrowClient   netip.Addr // behind a small MTU
	own                    netip.Addr // the node's
	node                   netip.Addr // node-b's, of `remote`
	vip, unused            netip.Addr
}

var families = []family{
	newFamily("IPv4", "192.168.200.1", "10.10.%d.11", "192.168.100.1", "10.96.0.10", "10.96.0.99"),
	newFamily("IPv6", "fd00:200::1", "fd00:10:%d::11", "fd00:100::1", "fd00:96::10", "fd00:96::99"),
}

func newFamily(name, client, pods, own, vip, unused string) family {
	pod := func(node int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(pods, node)) }
	return family{
		name: name, client: netip.MustParseAddr(client), pod: pod(2).Next(),
		remote: pod(2), local: pod(1), behindEth1: pod(3), noNeighbour: pod(4), noAddress: pod(5), noRoute: pod(9),
		narrow: pod(6), narrowClient: netip.MustParseAddr(strings.Replace(client, "200", "201", 1)),
		own: netip.MustParseAddr(own), node: netip.MustParseAddr(own).Next(), vip: netip.MustParseAddr(vip), unused: netip.MustParseAddr(unused),
	}
}

func (f family) icmp() uint8 {
	if f.client.Is4() {
		return model.ICMP
	}
	return model.ICMPv6
}

func (f family) loopback() netip.Addr {
	if f.client.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Ports of the Service's address, and the backends behind them.
const (
	toRemote, toLocal          = 80, 81
	toEth1, toNoNeighbour      = 82, 83
	toNoAddress, toNoRoute     = 84, 85
	rejected, dropped, passed  = 90, 91, 92
	onlyPods, onlyOutside      = 93, 94
	ranged, sticky, noBackends = 95, 96, 97
	toNarrow                   = 98

	targetPort = 8080
	clientPort = 40000
)

// scene is the Service's tables.
func (w *world) scene() *model.Tables {
	tables := w.tables()
	balance := func(ids ...uint32) model.Decision { return model.Decision{Slots: ids} }
	says := func(v model.Verdict) model.Decision { return model.Decision{Verdict: v} }
	for i, f := range families {
		first := uint32(1 + 10*i)
		for n, a := range []netip.Addr{f.remote, f.local, f.behindEth1, f.noNeighbour, f.noAddress, f.noRoute,
			f.remote.Next(), f.remote.Next().Next(), f.narrow} {
			b := model.Backend{Address: a, Port: targetPort, Local: a == f.local}
			if a == f.remote {
				b.Node = f.node
			}
			tables.Backends[first+uint32(n)] = b
		}
		add := func(port uint16, frontend model.Frontend) {
			frontend.Service = uint32(port)
			for _, protocol := range []uint8{tcp, udp} {
				tables.Frontends[model.FrontendKey{Address: f.vip, Port: port, Protocol: protocol}] = frontend
				tables.Frontends[model.FrontendKey{Address: f.loopback(), Port: port, Protocol: protocol}] = frontend
			}
		}
		for n, port := range []uint16{toRemote, toLocal, toEth1, toNoNeighbour, toNoAddress, toNoRoute} {
			d := balance(first + uint32(n))
			add(port, model.Frontend{Pod: d, Outside: d})
		}
		add(toNarrow, model.Frontend{Pod: balance(first + 8), Outside: balance(first + 8)})
		for _, dsr := range encapsulations {
			for n, port := range []uint16{toRemote, toLocal, toEth1, toNoNeighbour, toNoAddress, toNoRoute} {
				d := balance(first + uint32(n))
				add(direct(port, dsr), model.Frontend{Pod: d, Outside: d, DSR: dsr})
			}
			add(direct(toNarrow, dsr), model.Frontend{Pod: balance(first + 8), Outside: balance(first + 8), DSR: dsr})
		}
		for port, v := range map[uint16]model.Verdict{rejected: model.Reject, dropped: model.Drop, passed: model.Pass} {
			add(port, model.Frontend{Pod: says(v), Outside: says(v)})
		}
		add(onlyPods, model.Frontend{Pod: balance(first), Outside: says(model.Drop)})
		add(onlyOutside, model.Frontend{Pod: says(model.Reject), Outside: balance(first)})
		add(ranged, model.Frontend{Pod: balance(first), Outside: balance(first), SourceSet: 7})
		three := balance(first, first+6, first+7)
		add(sticky, model.Frontend{Pod: three, Outside: three, AffinitySeconds: 1000})
		add(noBackends, model.Frontend{Pod: balance(60), Outside: balance(60)})
		tables.Ranges[7] = append(tables.Ranges[7], netip.PrefixFrom(f.client, f.client.BitLen()))
		w.addSCTP(tables, f, 31+10*uint32(i))
		tables.Frontends[model.FrontendKey{Address: f.vip, Protocol: f.icmp()}] = model.Frontend{Service: 99, Pod: says(model.Answer), Outside: says(model.Answer)}
		// Every other port of the address is refused (R21).
		tables.Frontends[model.FrontendKey{Address: f.vip}] = model.Frontend{Pod: says(model.Reject), Outside: says(model.Reject)}
	}
	return tables
}

// eachFamily runs a test at XDP and at tc, for both IP versions, without earlier state.
func (w *world) eachFamily(t *testing.T, test func(t *testing.T, at hook, f family)) {
	t.Helper()
	for _, at := range []hook{atXDP, atIngress} {
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s", at, f.name), func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				test(t, at, f)
			})
		}
	}
}

// each is eachFamily for both protocols.
func (w *world) each(t *testing.T, test func(t *testing.T, at hook, f family, protocol uint8)) {
	t.Helper()
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, protocol := range []uint8{tcp, udp} {
			name := map[uint8]string{tcp: "TCP", udp: "UDP"}[protocol]
			t.Run(name, func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				test(t, at, f, protocol)
			})
		}
	})
}

// newScene is a world with the scene's tables.
func newScene(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, limits{})
	w.apply(t, w.scene())
	return w
}

func on(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// question is a client's packet to a port of the Service.
func (f family) question(protocol uint8, port uint16) probe {
	p := probe{from: on(f.client, clientPort), to: on(f.vip, port), protocol: protocol, payload: []byte("question")}
	if protocol == tcp {
		p.flags, p.seq, p.payload = syn, 0xfffffff0, nil
	}
	return p
}

// sends runs a frame that must leave as the packet wanted.
func (w *world) sends(t testing.TB, at hook, frame []byte, want probe) {
	t.Helper()
	w.leaves(t, at, frame, model.ActionSend, want.frame(t))
}

// passes runs a frame that must pass as the packet wanted.
func (w *world) passes(t testing.TB, at hook, frame []byte, want probe) {
	t.Helper()
	w.leaves(t, at, frame, model.ActionPass, want.frame(t))
}

// ignores runs a frame that must pass unchanged.
func (w *world) ignores(t testing.TB, at hook, frame []byte) {
	t.Helper()
	w.leaves(t, at, frame, model.ActionPass, frame)
}

// drops runs a frame that must be dropped, for one reason.
func (w *world) drops(t testing.TB, at hook, frame []byte, reason model.Reason) {
	t.Helper()
	before := w.counts(t)
	w.leaves(t, at, frame, model.ActionDrop, nil)
	w.counted(t, before, reason)
}

// counted checks that one packet was counted, by one reason.
func (w *world) counted(t testing.TB, before [model.Reasons]uint64, reason model.Reason) {
	t.Helper()
	before[reason]++
	after := w.counts(t)
	if w.attached { // a router solicitation, for example
		before[model.NotService] = after[model.NotService]
	}
	if after != before {
		t.Errorf("counted %v, want %v: one more of reason %d", after, before, reason)
	}
}

func (w *world) leaves(t testing.TB, at hook, frame []byte, action model.Action, want []byte) {
	t.Helper()
	got := w.run(t, at, frame)
	if got.Action != action {
		t.Fatalf("%s: action %v, want %v (0: pass, 1: drop, 2: send)\n%s", at, got.Action, action, hex.Dump(frame))
	}
	if !w.met(at, got, model.Result{Action: action, Frame: want}) {
		t.Fatalf("%s: the packet became\n%swant\n%s", at, hex.Dump(got.Frame), hex.Dump(want))
	}
}

// snatPort is the SNAT port of the packet that the node sends for a frame, the first of its flow.
func (w *world) snatPort(t testing.TB, at hook, frame []byte) uint16 {
	t.Helper()
	got := w.run(t, at, frame)
	if got.Action != model.ActionSend {
		t.Fatalf("%s: action %v, want 2 (sent)\n%s", at, got.Action, hex.Dump(frame))
	}
	ends := 14 + 20
	if frame[12] == 0x86 {
		ends += 20
	}
	at4 := ends + bytes.Index(frame[ends:], []byte{clientPort >> 8, clientPort & 0xff})
	port := uint16(got.Frame[at4])<<8 | uint16(got.Frame[at4+1])
	for _, r := range w.limits.ports {
		if port >= r[0] && port-r[0] < r[1] {
			return port
		}
	}
	t.Fatalf("%s: the node's source port is %d, outside %v", at, port, w.limits.ports)
	return 0
}
