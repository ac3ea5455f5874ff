// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// connectionCounts are what the statistics say of a Service, without the histogram.
type connectionCounts struct{ started, established, failed, closed, sent, received, retransmits uint64 }

// statsWorld is a world whose tests count connections from one pod.
type statsWorld struct {
	*world
	client *lab.Host
}

// stats are the statistics by the names of Services, and those of backends.
func (w *statsWorld) stats() (map[string]bpf.ConnectionStats, *bpf.AllConnectionStats) {
	w.t.Helper()
	all, err := bpf.ReadSocketStats(w.agent().BPFFS())
	w.must(err)
	if all == nil {
		w.t.Fatal("there are no statistics")
	}
	tables, err := bpf.OpenTables(w.agent().BPFFS())
	w.must(err)
	names, err := tables.Services.All()
	w.must(err)
	named := map[string]bpf.ConnectionStats{}
	for id, s := range all.Services {
		named[codec.PortOf(names[id]).Owner.Name] = s
	}
	return named, all
}

func countsOf(s bpf.ConnectionStats) connectionCounts {
	return connectionCounts{s.Started, s.Established, s.Failed, s.Closed, s.SentBytes, s.ReceivedBytes, s.Retransmits}
}

// wantCounts waits until a Service has the counts, and checks that each established connection is in the histogram.
func (w *statsWorld) wantCounts(t *testing.T, service string, want connectionCounts) {
	t.Helper()
	var got bpf.ConnectionStats
	deadline := time.Now().Add(patience)
	for ; countsOf(got) != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("Service %s: %+v, want %+v", service, countsOf(got), want)
			return
		}
		named, _ := w.stats()
		got = named[service]
	}
	if got.Handshakes() != want.established {
		t.Errorf("Service %s: %d handshakes in the histogram, want %d", service, got.Handshakes(), want.established)
	}
	if p99 := got.RTTQuantile(0.99); want.established > 0 && (p99 <= 0 || p99 > time.Second || got.RttSum == 0) {
		t.Errorf("Service %s: 99%% of the handshakes take up to %v, and all of them %d microseconds", service, p99, got.RttSum)
	}
}

// exchange sends a line of 6 bytes, and returns the length of the answer.
func exchange(t *testing.T, conn net.Conn) uint64 {
	t.Helper()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return uint64(len(answer))
}

// unanswered has a backend discard what it sends to a client.
func unanswered(t *testing.T, backend, client *lab.Host) {
	t.Helper()
	nl, err := backend.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	for _, a := range []netip.Addr{client.Addr4, client.Addr6} {
		err := nl.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Type: unix.RTN_BLACKHOLE})
		if err != nil {
			t.Fatalf("a route of %s that discards packets to %s: %v", backend.Name, a, err)
		}
	}
}

// retransmitted is the number of SYNs that a host has retransmitted, as its kernel counts them.
func retransmitted(t *testing.T, host *lab.Host) (n uint64) {
	t.Helper()
	var text []byte
	err := host.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n") // of names, and below of values
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, "TCPSynRetrans"); at >= 0 {
			n, err = strconv.ParseUint(values[at], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the kernel does not count retransmitted SYNs")
	return 0
}

// A countedCase makes connections to its own Service, and says what must be counted.
type countedCase struct {
	name    string
	backend string // pod
	port    int32  // of the backend; 0: that of its server
	connect func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts
}

const closedPort = 9 // where no pod listens

// closeWith is a connection that sends a request and is closed in some way.
func closeWith(f family, end func(*testing.T, *net.TCPConn)) func(*testing.T, *statsWorld, func(family) netip.AddrPort) connectionCounts {
	return func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts {
		conn := w.open(w.client, f, to(f)).(*net.TCPConn)
		if peer, err := peerOf(conn); err != nil || peer != to(f) {
			t.Errorf("getpeername says %v (%v), want %v", peer, err, to(f))
		}
		received := exchange(t, conn)
		end(t, conn)
		return connectionCounts{started: 1, established: 1, closed: 1, sent: 6, received: received}
	}
}

func closeConn(_ *testing.T, conn *net.TCPConn) { conn.Close() }

func resetConn(_ *testing.T, conn *net.TCPConn) {
	conn.SetLinger(0)
	conn.Close()
}

// halfClose closes after the server.
func halfClose(t *testing.T, conn *net.TCPConn) {
	conn.CloseWrite()
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read after the server's FIN: %d bytes, %v", n, err)
	}
	conn.Close()
}

var countedCases = []countedCase{
	{"closed", "b1", 0, closeWith(ipv4, closeConn)},
	{"closed-ipv6", "b1", 0, closeWith(ipv6, closeConn)},
	{"closed-mapped", "b1", 0, closeWith(v4Mapped, closeConn)},
	{"closed-by-both", "b1", 0, closeWith(ipv4, halfClose)},
	{"reset", "b1", 0, closeWith(ipv4, resetConn)},
	{"refused", "b1", closedPort, func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts {
		for _, f := range families {
			if got := meet(t, w.client, f, to(f), netip.Addr{}); got != closed {
				t.Errorf("%s: %s", f.name, got)
			}
		}
		return connectionCounts{started: 3, failed: 3}
	}},
	{"timeout", "b3", 0, func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts {
		s := ipv4.socket(t, w.client, 0)
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 1); err != nil {
			t.Fatal(err)
		}
		if err := s.connect(to(ipv4)); err != unix.ETIMEDOUT {
			t.Errorf("connect: %v", err)
		}
		// The number depends on the kernel (net.ipv4.tcp_syn_linear_timeouts, Linux 6.5).
		retransmits := retransmitted(t, w.client)
		if retransmits == 0 {
			t.Error("the SYN was not retransmitted")
		}
		return connectionCounts{started: 1, failed: 1, retransmits: retransmits}
	}},
	{"given-up", "b3", 0, func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts {
		s := ipv6.socket(t, w.client, unix.SOCK_NONBLOCK)
		if err := s.connect(to(ipv6)); err != unix.EINPROGRESS {
			t.Errorf("connect: %v", err)
		}
		w.wantCounts(t, "given-up", connectionCounts{started: 1})
		s.close()
		return connectionCounts{started: 1, failed: 1}
	}},
	// Its descriptor is duplicated, and the first one closed: the connection stays open.
	{"killed", "b1", 0, func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts {
		at := to(ipv4)
		cmd := w.client.Command(context.Background(), "bash", "-c",
			fmt.Sprintf("exec 3<>/dev/tcp/%s/%d 4<&3 3>&-; read -t 120 <&4", at.Addr(), at.Port()))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.wantCounts(t, "killed", connectionCounts{started: 1, established: 1})
		cmd.Process.Kill()
		cmd.Wait()
		return connectionCounts{started: 1, established: 1, closed: 1}
	}},
	// One socket for three connections, the last one not to a Service.
	{"again", "b1", 0, func(t *testing.T, w *statsWorld, to func(family) netip.AddrPort) connectionCounts {
		s := ipv4.socket(t, w.client, 0)
		for _, peer := range []netip.AddrPort{to(ipv4), to(ipv4), ipv4.pod(w.Host("b1")), ipv4.pod(w.Host("b2"))} {
			w.must(s.connect(peer))
			s.disconnect()
		}
		return connectionCounts{started: 2, established: 2, closed: 2}
	}},
}

// addCase adds the Service of a case.
func (w *statsWorld) addCase(n uint8, c countedCase) {
	w.t.Helper()
	s, slices := w.web(c.name, n, c.backend)
	if c.port != 0 {
		node.SetPorts(s, slices, node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, Target: c.port})
	}
	w.write(c.name, objects(s, slices)...)
}

// TestConnectionStatistics: each connection to a Service is counted exactly, however it ends and whatever happens to
// the agent, and others are not counted.
func TestConnectionStatistics(t *testing.T) {
	w := &statsWorld{world: newWorld(t, "node-a")}
	w.client = w.Host("a1")
	unanswered(t, w.Host("b3"), w.client)
	for i, c := range countedCases {
		w.addCase(uint8(i+1), c)
	}
	const held = 100
	w.write("held", objects(w.web("held", held, "b1 b2"))...)
	w.start()

	t.Run("cases", func(t *testing.T) {
		for i, c := range countedCases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				to := func(f family) netip.AddrPort { return f.clusterIP(uint8(i + 1)) }
				w.wantCounts(t, c.name, c.connect(t, w, to))
			})
		}
	})
	if conn := w.open(w.client, ipv4, ipv4.pod(w.Host("b1"))); exchange(t, conn) == 0 {
		t.Error("no answer")
	}
	if named, all := w.stats(); len(all.Services) != len(countedCases) || named["held"].Started != 0 || all.Uncounted != 0 || len(all.Backends) != 0 {
		t.Errorf("connections to no Service are counted: %+v", all)
	}

	t.Run("other program", w.besideOtherProgram)
	t.Run("shown", w.shown)

	conn := w.open(w.client, ipv6, ipv6.clusterIP(held))
	received := exchange(t, conn)
	open := connectionCounts{started: 1, established: 1}
	w.wantCounts(t, "held", open)
	w.restart("--socket-stats-per-backend", "--max-affinity=10000") // the tables are migrated
	w.wantCounts(t, "held", open)
	conn.Close()
	ended := connectionCounts{started: 1, established: 1, closed: 1, sent: 6, received: received}
	w.wantCounts(t, "held", ended)
	t.Run("per backend", w.perBackend)
	t.Run("Service deleted", w.deletedMeanwhile)

	w.restart("--socket-stats=false")
	if all, err := bpf.ReadSocketStats(w.agent().BPFFS()); all != nil || err != nil {
		t.Errorf("statistics without --socket-stats: %v, %v", all, err)
	}
	w.served(w.open(w.client, ipv4, ipv4.clusterIP(held)))
}

// shown checks the statistics as the command prints them and as the agent exports them.
func (w *statsWorld) shown(t *testing.T) {
	for _, source := range [][]string{nil, {"--pins"}} {
		text, err := w.agent().CLI(append([]string{"service", "show", "refused"}, source...)...)
		if err != nil || !strings.Contains(text, "to port tcp: 3 new, 0 open, 3 failed; ended: 0 bytes sent") {
			t.Errorf("service show: %v\n%s", err, text)
		}
	}
	var all []api.Metric
	w.must(api.NewClient(w.agent().Socket()).Get(t.Context(), api.MetricsPath, &all))
	values := map[string]float64{}
	for _, m := range all {
		if m.Labels["service"] != "closed" || m.Labels["namespace"] != "default" {
			continue
		}
		values[m.Name] = m.Value
		if h := m.Histogram; h != nil {
			values[m.Name] = float64(h.Count)
			if last := h.Buckets[len(h.Buckets)-1]; last.Count != h.Count || h.Sum <= 0 {
				t.Errorf("histogram %s: %+v", m.Name, h)
			}
		}
	}
	for name, want := range map[string]float64{"connections_total": 2, "connections_failed_total": 0, "connections_closed_total": 2, "connections_open": 0, "sent_bytes_total": 12, "handshake_seconds": 2} {
		if got, exported := values["beeline_socket_"+name]; got != want || !exported {
			t.Errorf("beeline_socket_%s of Service closed is %v, want %v", name, got, want)
		}
	}
}

// restart starts the agent again with other flags.
func (w *statsWorld) restart(flags ...string) {
	w.t.Helper()
	w.must(w.agent().Stop())
	w.agent().Flags = flags
	w.must(w.agent().Start())
}

// perBackend checks that each connection is counted for the backend that it reached.
func (w *statsWorld) perBackend(t *testing.T) {
	const n = 101
	w.apply("backends", objects(w.web("backends", n, "b1 b2"))...)
	want := map[string]uint64{}
	for _, f := range families {
		for range 4 {
			conn := w.open(w.client, f, f.clusterIP(n))
			want[f.pod(w.Host(w.served(conn))).String()]++
			conn.Close()
		}
	}
	w.eventually("all connections are counted as closed", func() bool {
		named, _ := w.stats()
		return named["backends"].Closed == 12
	})
	_, all := w.stats()
	got := map[string]uint64{}
	for key, s := range all.Backends {
		if got[key.Address.String()] = s.Started; s.Open() != 0 || s.Closed != s.Started || s.Handshakes() != s.Started || s.ReceivedBytes == 0 {
			t.Errorf("backend %s: %+v", key.Address, s)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("connections by backend %v, want %v", got, want)
	}
}

// deletedMeanwhile ends a connection whose counts the agent has deleted with the Service: it must not be counted for
// the next Service with the ID.
func (w *statsWorld) deletedMeanwhile(t *testing.T) {
	const n = 102
	w.apply("gone", objects(w.web("gone", n, "b1"))...)
	before := w.open(w.client, ipv4, ipv4.clusterIP(n))
	w.wantCounts(t, "gone", connectionCounts{started: 1, established: 1})
	id := w.serviceID("gone")
	rows, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent().BPFFS(), bpf.SockStatsMapServiceSockets), nil)
	w.must(err)
	defer rows.Close()
	w.must(rows.Delete(id))
	w.open(w.client, ipv4, ipv4.clusterIP(n))
	before.Close()
	w.open(w.client, ipv4, ipv4.clusterIP(n))
	w.wantCounts(t, "gone", connectionCounts{started: 2, established: 2})

	w.remove("gone")
	w.eventually("the counts of a deleted Service are deleted", func() bool {
		_, all := w.stats()
		_, counted := all.Services[id]
		return !counted
	})
}

// serviceID is the ID of the port of a Service, 0 if there is none. The other ports of its ClusterIP have an ID, too.
func (w *statsWorld) serviceID(service string) uint32 {
	w.t.Helper()
	tables, err := bpf.OpenTables(w.agent().BPFFS())
	w.must(err)
	names, err := tables.Services.All()
	w.must(err)
	for id, name := range names {
		if port := codec.PortOf(name); port.Owner.Name == service && port.Name == "tcp" {
			return id
		}
	}
	return 0
}

// besideOtherProgram counts while another program of the cgroup overwrites the flags of each socket at its SYN, and
// checks that it gets the calls that it asked for.
func (w *statsWorld) besideOtherProgram(t *testing.T) {
	calls, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	w.must(err)
	defer calls.Close()
	const (
		connectCB, rttCB = 3, 12 // BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_RTT_CB
		rttFlag          = 8     // BPF_SOCK_OPS_RTT_CB_FLAG
	)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // op
			asm.JEq.Imm(asm.R2, rttCB, "rtt"),
			asm.JNE.Imm(asm.R2, connectCB, "end"),
			asm.Mov.Imm(asm.R2, rttFlag),
			asm.FnSockOpsCbFlagsSet.Call(),
			asm.Ja.Label("end"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word).WithSymbol("rtt"),
			asm.LoadMapPtr(asm.R1, calls.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
			asm.Return(),
		}})
	w.must(err)
	defer program.Close()
	other, err := link.AttachCgroup(link.CgroupOptions{Path: w.Host("node-a").CgroupRoot, Attach: ebpf.AttachCGroupSockOps, Program: program})
	w.must(err)
	defer other.Close()
	conn := w.open(w.client, ipv4, ipv4.clusterIP(1))
	received := exchange(t, conn)
	conn.Close()
	w.wantCounts(t, "closed", connectionCounts{started: 2, established: 2, closed: 2, sent: 12, received: 2 * received})
	var n uint64
	w.must(calls.Lookup(uint32(0), &n))
	if n == 0 {
		t.Error("the other program gets no calls")
	}
}
