// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// istioRules are those of istio-init in a pod: both directions to the proxy, except its own connections.
const istioRules = `table ip istio {
	chain output {
		type nat hook output priority -100; policy accept;
		meta skuid 1337 return
		ip daddr 127.0.0.0/8 return
		meta l4proto tcp redirect to :15001
	}
	chain prerouting {
		type nat hook prerouting priority -100; policy accept;
		tcp dport { 15008, 15020, 15021, 15090 } return
		meta l4proto tcp redirect to :15006
	}
}`

// TestBesideOthers: pods with Istio's rules of netfilter, with another load balancer's program above, and with sockets
// in another program's sockmap.
func TestBesideOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-sockmap")
	a1, a2, b1 := w.Host("a1"), w.Host("a2"), w.Host("b1")
	w.run("a1", "nft", istioRules)
	invented := netip.MustParseAddrPort("192.0.2.77:80")
	translate(t, w.agent.Host.CgroupRoot, invented, netip.AddrPortFrom(b1.Addr4, lab.PortTCP))
	s1, s2 := w.startProxy(envoy, "a1"), w.startProxy(haproxy, "a2")
	foreign := joinAll(t, w.Host("a3").Cgroup)
	s3 := w.startProxy(haproxy, "a3")
	w.startAgent()
	t.Run("rules of netfilter", func(t *testing.T) {
		w := w.in(t)
		w.inbound(s1)
		to := netip.AddrPortFrom(b1.Addr4, lab.PortTCP)
		conn := w.open(a1.Name, to, lab.DialOptions{})
		if w.ask(conn); !local(conn).IsLoopback() {
			t.Errorf("the connection has the source %s", local(conn))
		}
		conn.Close() // then Envoy writes its log
		w.eventually("the proxy has logged "+to.String(), func() bool { return s1.proxied("127.0.0.1", to.String()) })
	})
	t.Run("programs of another load balancer", func(t *testing.T) {
		w := w.in(t)
		conn := w.open(a2.Name, invented, lab.DialOptions{})
		if answer := w.ask(conn); answer.Pod != "b1" || !local(conn).IsLoopback() {
			t.Errorf("the connection from %s is answered by %+v", local(conn), answer)
		}
		w.eventually("the proxy has logged "+invented.String(), func() bool { return s2.proxied("127.0.0.1", invented.String()) })
	})
	t.Run("another sockmap", func(t *testing.T) {
		w := w.in(t)
		w.needSockmap()
		ask := func() net.Conn {
			conn := w.open("a3", netip.AddrPortFrom(b1.Addr4, lab.PortTCP), lab.DialOptions{})
			w.ask(conn)
			return conn
		}
		for range readsUntilKnown {
			ask().Close()
		}
		before := w.counts()
		conn := ask()
		if n := membersOf(t, foreign); n < 2 {
			t.Errorf("the other sockmap has %d sockets", n)
		}
		w.halfClose("another sockmap", conn)
		if now := w.counts(); now.Foreign < before.Foreign+2 || now.Joined != before.Joined {
			t.Errorf("before %+v, now %+v: want both sockets left to the other sockmap", before, now)
		}
		w.inbound(s3)
	})
}

// translate attaches a program to a cgroup that replaces a destination, as load balancers do.
func translate(t *testing.T, cgroup string, from, to netip.AddrPort) {
	t.Helper()
	word := func(a netip.AddrPort) int32 {
		b := a.Addr().As4()
		return int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
	}
	const userIP4, userPort = 4, 24 // offsets in struct bpf_sock_addr
	attach(t, cgroup, ebpf.AttachCGroupInet4Connect, &ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, userIP4, asm.Word),
			asm.LoadImm(asm.R3, int64(uint32(word(from))), asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R3, "out"),
			asm.LoadImm(asm.R3, int64(uint32(word(to))), asm.DWord),
			asm.StoreMem(asm.R1, userIP4, asm.R3, asm.Word),
			asm.Mov.Imm(asm.R3, int32(bpf.NetworkOrder(to.Port()))),
			asm.StoreMem(asm.R1, userPort, asm.R3, asm.Word),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		}})
}

// joinAll attaches programs to a cgroup that let the sockets of all connections join a sockmap, whose program passes.
func joinAll(t *testing.T, cgroup string) *ebpf.Map {
	t.Helper()
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Name: "other", Type: ebpf.SockHash, KeySize: 8, ValueSize: 8, MaxEntries: 1000})
	must(t, err)
	t.Cleanup(func() { sockets.Close() })
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SkMsg, AttachType: ebpf.AttachSkMsgVerdict, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { pass.Close() })
	must(t, link.RawAttachProgram(link.RawAttachProgramOptions{Target: sockets.FD(), Program: pass, Attach: ebpf.AttachSkMsgVerdict}))
	const active, passive = 4, 5 // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, PASSIVE_ESTABLISHED_CB
	attach(t, cgroup, ebpf.AttachCGroupSockOps, &ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // op
			asm.JEq.Imm(asm.R2, active, "join"),
			asm.JNE.Imm(asm.R2, passive, "out"),
			asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("join"),
			asm.FnGetSocketCookie.Call(),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.LoadMapPtr(asm.R2, sockets.FD()),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnSockHashUpdate.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		}})
	return sockets
}

// attach loads a program and attaches it to a cgroup beside others.
func attach(t *testing.T, cgroup string, at ebpf.AttachType, spec *ebpf.ProgramSpec) {
	t.Helper()
	program, err := ebpf.NewProgram(spec)
	must(t, err)
	defer program.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: at, Program: program})
	must(t, err)
	t.Cleanup(func() { l.Close() })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// membersOf counts the sockets in a sockmap.
func membersOf(t *testing.T, sockets *ebpf.Map) (n int) {
	t.Helper()
	var cookie, socket uint64
	it := sockets.Iterate()
	for it.Next(&cookie, &socket) {
		n++
	}
	must(t, it.Err())
	return n
}
