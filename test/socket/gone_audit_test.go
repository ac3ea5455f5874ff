// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// R29: what another program writes into the tables takes effect in connect() at once. When the audit has
// repaired it, sockets end whose Service does not have their backend, although no Service has lost a backend.
func TestUDPSocketEndsWhenTheAuditRepairsTheTables(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.agent().Flags = append(w.agent().Flags, "--audit-interval=50ms")
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		w.apply("other", objects(w.udp("other", 2, "b2"))...)
		var misled, stay []*connectedSocket
		for _, f := range families {
			for _, host := range w.hosts(askers) {
				stay = append(stay, w.connectUDP(t, f, host, f.clusterIP(1)), w.connectUDP(t, f, host, f.clusterIP(2)))
			}
		}
		w.quiet() // only the audit makes a GC pass
		resume := w.pauseAgent()
		w.mislead(ipv4.clusterIP(1), ipv4.clusterIP(2))
		w.mislead(ipv6.clusterIP(1), ipv6.clusterIP(2))
		for _, f := range families {
			for _, host := range w.hosts(askers) {
				s := w.connectUDP(t, f, host, f.clusterIP(1))
				if s.pod != "b2" {
					t.Fatalf("%s has %s, though the tables lead to b2", s.what, s.pod)
				}
				misled = append(misled, s)
			}
		}
		resume()
		wantAllEnded(misled)
		w.quiet()
		wantUntouched(stay)
		status, err := w.agent().Status()
		w.must(err)
		if status.Sync.Repairs != 2 {
			t.Errorf("the audit counts %d repairs, want 2", status.Sync.Repairs)
		}
	})
}

// pauseAgent stops the agent until resume.
func (w *world) pauseAgent() (resume func()) {
	w.t.Helper()
	pid := w.agent().PID()
	w.must(unix.Kill(pid, unix.SIGSTOP))
	// The signal was sent; this waits for the last thread.
	w.must(unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil))
	return func() {
		w.t.Helper()
		w.must(unix.Kill(pid, unix.SIGCONT))
	}
}

// mislead overwrites the backend of one UDP Service with another's, like a program that takes the pinned tables
// for its own. Each has one backend.
func (w *world) mislead(service, to netip.AddrPort) {
	w.t.Helper()
	tables, err := bpf.OpenTables(w.agent().BPFFS())
	w.must(err)
	index, err := tables.Frontends.All()
	w.must(err)
	slot := func(a netip.AddrPort) uint32 {
		key := bpf.FrontendKey{Address: bpf.AddressFrom(a.Addr()), Port: bpf.NetworkOrder(a.Port()), Protocol: unix.IPPROTO_UDP}
		row, ok := index[key]
		if !ok {
			w.t.Fatalf("the tables have no frontend %s", a)
		}
		return tables.FrontendRows.Load(row).Decisions[0].First
	}
	w.must(tables.Slots.Store(slot(service), tables.Slots.Load(slot(to))))
}
