// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/tables/reconcile"
	"beeline.io/beeline/test/packet/model"
)

// How long idle flows are remembered in TestJustEnough.
var idleTimes = func() conntrack.Timeouts {
	t := conntrack.DefaultTimeouts
	t.TCPEstablished, t.TCPCloseWait, t.UDPStream = 1000*time.Second, 500*time.Second, 500*time.Second
	return t
}()

// The backends of its Services: six, two of them on this node.
var justBackends = func() (all []service.Backend) {
	for n := range byte(6) {
		b := service.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 2, 11 + n}), targetPort), Weight: 1,
			Node: netip.AddrFrom4([4]byte{192, 168, 100, 2})}
		if n >= 4 {
			b.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 1, 11 + n}), targetPort)
			b.Local, b.Node = true, netip.Addr{}
		}
		all = append(all, b)
	}
	return all
}()

// The states of a backend in a Service.
const (
	absent      = iota
	ready       // takes new connections
	terminating // keeps its connections
)

// justService is a Service of TestJustEnough.
type justService struct {
	address   netip.AddrPort
	protocol  service.Protocol
	stateless bool

	states   [6]int
	weights  [6]uint8
	size     uint32 // of its Maglev table; 0: random
	dsr      service.DSR
	affinity time.Duration
}

func newJustServices() []*justService {
	return []*justService{
		{address: netip.MustParseAddrPort("10.96.0.20:80"), protocol: service.TCP, size: 31, dsr: service.DSRIPIP},
		{address: netip.MustParseAddrPort("10.96.0.21:80"), protocol: service.TCP, size: 31, dsr: service.DSRGeneve},
		{address: netip.MustParseAddrPort("10.96.0.22:53"), protocol: service.UDP, size: 31, dsr: service.DSRIPIP, stateless: true},
		{address: netip.MustParseAddrPort("10.96.0.23:5000"), protocol: service.UDP, size: 31, dsr: service.DSROpt},
	}
}

func (s *justService) owner() service.Ref {
	return service.Ref{Kind: service.KindService, Namespace: "default", Name: fmt.Sprint("s", s.address.Addr().As4()[3])}
}

func (s *justService) of(state int) (all []service.Backend) {
	for i, b := range justBackends {
		if b.Weight = max(1, s.weights[i]); s.states[i] == state {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b service.Backend) int { return a.Addr.Compare(b.Addr) })
	return all
}

func (s *justService) untracked() bool {
	return s.dsr != "" && s.size > 0 && s.affinity == 0 && (s.protocol == service.TCP || s.stateless)
}

// plan is what package service makes of such a Service.
func (s *justService) plan() *service.Plan {
	port := service.Port{Owner: s.owner(), Protocol: s.protocol}
	cluster := service.BackendSet{Key: service.SetKey{Port: port, Family: service.IPv4}, Backends: s.of(ready)}
	kept := service.BackendSet{Key: service.SetKey{Port: port, Family: service.IPv4, Scope: service.ScopeRetained}, Backends: s.of(terminating)}
	for i := range kept.Backends {
		kept.Backends[i].Weight = 1
	}
	p := &service.Plan{TableSize: s.size}
	f := service.Frontend{Key: service.FrontendKey{Addr: s.address.Addr(), Port: s.address.Port(), Protocol: s.protocol}, Kind: service.LoadBalancer,
		Port: port, Affinity: s.affinity, DSR: s.dsr, Untracked: s.untracked()}
	for class := range f.Decisions {
		f.Decisions[class] = service.Decision{Verdict: service.Reject}
		if len(cluster.Backends) > 0 {
			f.Decisions[class] = service.Decision{Verdict: service.Balance, Scope: cluster.Key.Scope}
		}
	}
	p.Frontends = []service.Frontend{f}
	if len(cluster.Backends) > 0 {
		p.Sets = []service.BackendSet{cluster}
	}
	if len(kept.Backends) > 0 {
		p.Retained = []service.BackendSet{kept}
	}
	return p
}

// agent does what an agent of this node would do, over the programs' own tables and with a clock that the test
// moves.
type agent struct {
	*world
	*reconcile.Syncer
	tables *bpf.Tables
	flows  *conntrack.Tables
	ahead  uint32 // seconds ahead of the kernel's clock
}

func newAgent(t testing.TB, w *world) *agent {
	t.Helper()
	tables, err := bpf.NewTables(withSocketTables(t, w.maps))
	must(t, err)
	tables.WaitForReaders = func() error { return nil } // no packet is in flight meanwhile
	a := &agent{world: w, tables: tables, flows: conntrack.TablesOf(w.maps)}
	a.start(t)
	return a
}

// withSocketTables adds the tables of an agent that only the programs of sockets have.
func withSocketTables(t testing.TB, of map[string]*ebpf.Map) map[string]*ebpf.Map {
	t.Helper()
	spec, err := bpf.LoadSock()
	must(t, err)
	all := maps.Clone(of)
	for _, name := range []string{bpf.SockMapReservedPorts, bpf.SockMapOptedOut} {
		if all[name] != nil {
			t.Fatalf("the edge has table %s, too", name)
		}
		spec.Maps[name].MaxEntries = 1024
		m, err := ebpf.NewMap(spec.Maps[name])
		must(t, err)
		t.Cleanup(func() { m.Close() })
		all[name] = m
	}
	return all
}

func (a *agent) start(t testing.TB) {
	t.Helper()
	var err error
	a.Syncer, err = reconcile.NewAt(a.tables, a.seconds)
	must(t, err)
}

func (a *agent) seconds() uint32 { return kernelSeconds() + a.ahead }

// programTimeouts are an agent's timeouts as its programs have them: by enum ct_timeout.
func programTimeouts(t conntrack.Timeouts) []uint32 { return t.Datapath()[:] }

// pass makes time pass, by making all entries older.
func (a *agent) pass(t testing.TB, seconds uint32) {
	t.Helper()
	a.ahead += seconds
	a.world.pass(t, time.Duration(seconds)*time.Second)
}

// sweep is a GC pass: what internal/conntrack does every ten seconds or less often.
func (a *agent) sweep(t testing.TB) {
	t.Helper()
	gc := a.SlotGC(func(p service.Protocol) time.Duration { return idleTimes.Established(uint8(p)) })
	gc.Begin()
	must(t, a.tables.WaitForReaders())
	_, err := conntrack.CollectGarbage(a.flows, idleTimes, kernelSeconds(), func(_ bool, key conntrack.Tuple, e *conntrack.Entry) { gc.Entry(key, e) })
	must(t, err)
	must(t, gc.End())
	a.collect(t)
}

func (a *agent) collect(t testing.TB) {
	t.Helper()
	for {
		left, err := a.CollectGarbage()
		must(t, err)
		if !left {
			return
		}
	}
}

// apply writes Services to the tables, and ends UDP flows of backends that are gone.
func (a *agent) apply(t testing.TB, whole bool, services ...*justService) {
	t.Helper()
	delta := service.Delta{Plans: map[service.Ref]*service.Plan{}}
	if whole {
		pods := prefixes("10.10.0.0/16")
		delta.PodNetworks = &pods
	}
	for _, s := range services {
		delta.Plans[s.owner()] = s.plan()
	}
	must(t, a.Apply(delta))
	_, err := conntrack.DeleteStaleUDP(a.flows, func(c bpf.Connection) bool {
		return a.Serves(service.Protocol(c.Protocol), c.Service, c.Backend)
	}, a.tables.WaitForReaders)
	must(t, err)
}

// dump is the contents of the tables, with addresses in place of IDs.
func dump(t testing.TB, tables *bpf.Tables) map[string]string {
	t.Helper()
	index, err := tables.Frontends.All()
	must(t, err)
	address := func(slot uint32) string { return tables.Backends.Load(tables.Slots.Load(slot)).AddrPort().String() }
	all := map[string]string{"untracked": fmt.Sprint(tables.UntrackedFrontends.Load(0).Bits)}
	for key, number := range index {
		row := tables.FrontendRows.Load(number)
		text := fmt.Sprintf("kind %d, dsr %d, flags %#x, affinity %d", row.Kind, row.Dsr, row.Flags, row.AffinitySeconds)
		for _, d := range row.Decisions {
			text += fmt.Sprint("; ", d.Count)
			for n := range d.Count {
				text += " " + address(d.First+n)
			}
		}
		if row.Lists > 0 {
			kept := tables.FrontendLists.Load(row.Lists).Retained
			text += "; kept"
			for n := range kept.Count {
				text += " " + address(kept.First+n)
			}
		}
		all[key.Address.Addr().String()] = text
	}
	return all
}

// taken is the destination of a packet.
type taken struct {
	backend  netip.AddrPort
	way      string // "direct", "snat", "local"; "refused"
	snatPort uint16 // SNAT: the node's port
}

// takes has a packet arrive, at XDP or at tc, and returns where it goes.
func (a *agent) takes(t testing.TB, r *rand.Rand, p probe) taken {
	t.Helper()
	at := atIngress
	frame := p.frame(t)
	if r.IntN(2) == 0 {
		at = atXDP
	}
	got := a.run(t, at, frame)
	if got.Action == model.ActionDrop {
		return taken{way: "dropped"}
	}
	ip := got.Frame[14:]
	to := netip.AddrFrom4([4]byte(ip[16:20]))
	header := int(ip[0]&15) * 4
	switch {
	case got.Action == model.ActionPass && to == p.to.Addr():
		return taken{way: "left alone"}
	case got.Action == model.ActionPass:
		return taken{netip.AddrPortFrom(to, binary.BigEndian.Uint16(ip[header+2:])), "local", 0}
	case to == p.from.Addr():
		return taken{way: "refused"}
	case ip[9] == 4:
		return taken{netip.AddrPortFrom(to, targetPort), "direct", 0}
	case ip[9] == udp && binary.BigEndian.Uint16(ip[header+2:]) == 6081:
		option := ip[header+8+8+4:]
		return taken{netip.AddrPortFrom(netip.AddrFrom4([4]byte(option[4:8])), binary.BigEndian.Uint16(option)), "direct", 0}
	}
	backend := netip.AddrPortFrom(to, binary.BigEndian.Uint16(ip[header+2:]))
	if header > 20 {
		return taken{backend, "direct", 0}
	}
	return taken{backend, "snat", binary.BigEndian.Uint16(ip[header:])}
}

// answers has the backend reply, if its packets pass this node.
func (a *agent) answers(t testing.TB, where taken, client netip.AddrPort, protocol uint8) {
	t.Helper()
	p := probe{from: where.backend, to: client, protocol: protocol, flags: syn | ack, seq: backendISN, ack: clientISN + 1}
	switch where.way {
	case "snat":
		p.to = netip.AddrPortFrom(netip.MustParseAddr("192.168.100.1"), where.snatPort)
		a.run(t, atIngress, p.frame(t))
	case "local":
		a.run(t, atEgress, p.frame(t))
	}
}

// kernelSeconds is the clock of last_seen.
func kernelSeconds() uint32 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts) // fails only for clocks that do not exist
	return uint32(ts.Sec)
}
