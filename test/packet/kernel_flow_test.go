// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	kernel "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/packet/model"
)

// kernelTracks adds a flow to the kernel's conntrack of the node, until the test's end.
func kernelTracks(t testing.TB, protocol uint8, from, to netip.AddrPort, status kernel.Status, tcpState uint8) {
	t.Helper()
	if bpf.KernelConntrack() == 0 {
		t.Fatal(bpf.NoKernelFlows())
	}
	c, err := kernel.Dial(nil)
	must(t, err)
	f := kernel.NewFlow(protocol, status|kernel.StatusConfirmed, from.Addr(), to.Addr(), from.Port(), to.Port(), 100, 0)
	if protocol == tcp {
		f.ProtoInfo.TCP = &kernel.ProtoInfoTCP{State: tcpState}
	}
	must(t, c.Create(f))
	t.Cleanup(func() {
		if err := c.Delete(f); err != nil {
			t.Errorf("delete the conntrack entry: %v", err)
		}
		c.Close()
	})
}

// States of TCP in the kernel's conntrack.
const (
	synSent     = 1
	synReceived = 2
	established = 3
	timeWait    = 7
	closed      = 8
)

// answers makes a packet one that no client begins a connection with.
func (p probe) answers() probe {
	if p.protocol == tcp {
		p.flags, p.ack = syn|ack, 1
	}
	return p
}

// continues makes a packet one of an open connection.
func (p probe) continues() probe {
	if p.protocol == tcp {
		p.flags, p.ack = ack, 1
	}
	return p
}

// stack expects that the stack gets a packet, for a reason.
func (w *world) stack(t *testing.T, at hook, p probe, reason model.Reason) {
	t.Helper()
	before := w.counts(t)
	w.ignores(t, at, p.frame(t))
	w.counted(t, before, reason)
}

// served expects that a packet begins a flow of the Service.
func (w *world) served(t *testing.T, at hook, p probe) {
	t.Helper()
	before := w.counts(t)
	if got := w.run(t, at, p.frame(t)); got.Action != model.ActionSend {
		t.Errorf("the Service does not get the packet: %v", got.Action)
	}
	w.counted(t, before, model.New)
}

// The answer to a flow of the kernel is the kernel's, at each port that a Service has: whatever its verdict.
func TestReplyOfKernelsFlow(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, port := range []uint16{toRemote, toLocal, rejected, dropped} {
			answer := f.question(protocol, port).answers()
			kernelTracks(t, protocol, answer.to, answer.from, 0, synSent)
			w.stack(t, at, answer, model.KernelFlow)
		}
	})
}

// A SYN answers nothing: it begins a flow, and nobody is asked.
func TestSYNIsServedBesideKernelsFlow(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question := f.question(tcp, toRemote)
		kernelTracks(t, tcp, question.to, question.from, kernel.StatusSeenReply|kernel.StatusAssured, established)
		w.served(t, at, question)
	})
}

// A client that has sent before the Service existed is served, although conntrack has what it sent; a connection that
// somebody has answered goes on where it is.
func TestOriginalDirectionOfKernelsFlow(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote).continues()
		kernelTracks(t, protocol, question.from, question.to, 0, synSent)
		w.served(t, at, question)
	})
	const replied = kernel.StatusSeenReply | kernel.StatusAssured
	for _, c := range []struct {
		status   kernel.Status
		state    uint8
		isServed bool
	}{
		{0, established, true}, // of a segment whose SYN it has not seen (nf_conntrack_tcp_loose)
		{replied, synReceived, false},
		{replied, established, false},
		{replied, timeWait, false},
		{replied, closed, true},
	} {
		w.eachFamily(t, func(t *testing.T, at hook, f family) {
			question := f.question(tcp, toRemote).continues()
			kernelTracks(t, tcp, question.from, question.to, c.status, c.state)
			if c.isServed {
				w.served(t, at, question)
				w.forget(t)
			} else {
				w.stack(t, at, question, model.KernelFlow)
			}
		})
	}
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question := f.question(udp, toRemote)
		kernelTracks(t, udp, question.from, question.to, replied, 0)
		w.served(t, at, question)
	})
}

// A datagram in the name of a client that has a direct flow to the backend on this node, such as a forged one, does not
// get that flow's port: the backend's answers keep their source. Without such a flow the client keeps its port.
func TestDirectDatagramsGoOn(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question, backend := f.question(udp, toLocal), on(f.local, targetPort)
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		w.forget(t)
		kernelTracks(t, udp, question.from, backend, kernel.StatusSeenReply|kernel.StatusAssured, 0)
		other := w.seen(t, at, question, backend)
		if other == clientPort {
			t.Error("the datagram to the Service has the port of the direct flow")
		}
		w.ignores(t, atEgress, reply(backend, question.from, udp).frame(t))
		answer := reply(backend, on(f.client, other), udp)
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
	})
}

// socketAt is a socket of the node with a Service's address and port, connected to a remote end if that is valid.
func socketAt(t *testing.T, protocol uint8, at, remote netip.AddrPort) {
	t.Helper()
	domain, kind := unix.AF_INET, unix.SOCK_DGRAM
	if at.Addr().Is6() {
		domain = unix.AF_INET6
	}
	if protocol == tcp {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(t, unix.Bind(fd, sockaddr(at)))
	switch {
	case remote.IsValid():
		if err := unix.Connect(fd, sockaddr(remote)); err != nil && err != unix.EINPROGRESS {
			t.Fatal(os.NewSyscallError("connect", err))
		}
	case protocol == tcp:
		must(t, unix.Listen(fd, 10))
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// The answer to a connected socket of the node is the socket's. A listener and an unconnected socket do not keep a
// client from the Service, such as a resolver at *:53 beside a HostPort 53.
func TestAnswerToSocket(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		answer := f.question(protocol, toRemote).answers()
		socketAt(t, protocol, answer.to, answer.from)
		w.stack(t, at, answer, model.KernelSocket)
		other := answer.continues()
		other.from = on(f.client.Next(), clientPort)
		w.served(t, at, other)
	})
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote).continues()
		wildcard := netip.IPv4Unspecified()
		if f.client.Is6() {
			wildcard = netip.IPv6Unspecified()
		}
		socketAt(t, protocol, on(wildcard, toRemote), netip.AddrPort{})
		w.served(t, at, question)
	})
}

// A SNAT port that the kernel's conntrack has towards the backend is not taken (a masqueraded pod, or a socket of
// the node): the flow gets another one.
func TestSNATPortOfKernelsFlow(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question, own, backend := w.askRemote(t, at, f, protocol)
		w.forget(t)
		kernelTracks(t, protocol, own, backend, 0, synSent)
		if port := w.snatPort(t, at, question.frame(t)); port == own.Port() {
			t.Errorf("the flow got port %d, which the kernel's conntrack has towards the backend", port)
		}
	})
}

// Each packet to an untracked NodePort asks, except a SYN: such a frontend has no first packet.
func TestUntrackedNodePort(t *testing.T) {
	w := newScene(t)
	w.untracked(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		answer := f.question(protocol, direct(toRemote, dsr)).answers()
		kernelTracks(t, protocol, answer.to, answer.from, 0, synSent)
		w.kinds(t, service.NodePort)
		w.stack(t, at, answer, model.KernelFlow)
		w.kinds(t, service.LoadBalancer)
		before := w.counts(t)
		w.run(t, at, answer.frame(t))
		w.counted(t, before, model.Untracked)
	})
}

// The kernel is not asked about what a balancer has encapsulated: a flow that it has with the same ends is another.
func TestEncapsulatedBesideKernelsFlow(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		kernelTracks(t, question.protocol, question.to, question.from, 0, synSent)
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
	})
}

// kinds changes the kind of all frontends.
func (w *world) kinds(t testing.TB, kind service.FrontendKind) {
	t.Helper()
	for number := range uint32(tableSize) {
		var row bpf.Frontend
		must(t, w.maps[bpf.EdgeTCMapFrontendRows].Lookup(number, &row))
		if row.Key.Port != 0 {
			row.Kind = uint8(kind)
			must(t, w.maps[bpf.EdgeTCMapFrontendRows].Put(number, row))
		}
	}
}

// kernelEntry returns the entry of the kernel's conntrack between two ends; nil if there is none.
func kernelEntry(t testing.TB, protocol uint8, from, to netip.AddrPort) *kernel.Flow {
	t.Helper()
	c, err := kernel.Dial(nil)
	must(t, err)
	defer c.Close()
	f, err := c.Get(kernel.NewFlow(protocol, 0, from.Addr(), to.Addr(), from.Port(), to.Port(), 0, 0))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	must(t, err)
	return &f
}

// permit lets programs add entries to the kernel's conntrack, or not.
func (w *world) permit(t testing.TB, is bool) {
	t.Helper()
	var until uint32
	if is {
		until, _ = now(t)
		until += 1000
	}
	w.put(t, bpf.EdgeTCMapKernelRoom, uint32(0), until)
}

// connected has a client connect to the remote backend: with its acknowledgment the flow is assured.
func (w *world) connected(t *testing.T, at hook, f family) (question probe, own, backend netip.AddrPort) {
	t.Helper()
	question, own, backend = w.askRemote(t, at, f, tcp)
	if kernelEntry(t, tcp, own, backend) != nil {
		t.Error("a SYN has added an entry to the kernel's conntrack")
	}
	w.run(t, at, reply(backend, own, tcp).frame(t))
	question = question.continues()
	question.seq, question.ack = question.seq+1, 78
	w.run(t, at, question.frame(t))
	return question, own, backend
}

// The port of an assured flow is known to the kernel's conntrack if the backend is outside the pod networks and the
// agent permits it, and no longer than the flow lasts. The flow's own entry does not keep it from its port. An entry of
// another flow with the port is left alone.
func TestKernelKnowsSNATPorts(t *testing.T) {
	w := newWorld(t, limits{})
	pods := w.scene()
	outside := w.scene()
	outside.Pods = nil
	w.apply(t, outside)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		flushKernel(t)
		w.permit(t, false)
		_, own, backend := w.connected(t, at, f)
		if kernelEntry(t, tcp, own, backend) != nil {
			t.Error("an entry was added without the agent's permission")
		}
		w.forget(t)
		w.permit(t, true)
		question, own, backend := w.connected(t, at, f)
		entry := kernelEntry(t, tcp, own, backend)
		if entry == nil || entry.Mark != bpf.OwnEntryMark || !entry.Status.Assured() || entry.Timeout < 1000 {
			t.Fatalf("the kernel's entry of an assured flow is %+v, want one with the mark %#x that lasts", entry, bpf.OwnEntryMark)
		}
		question.flags, question.ack = rst, 0
		w.run(t, at, question.frame(t))
		if entry := kernelEntry(t, tcp, own, backend); entry != nil && entry.Timeout > 200 {
			t.Errorf("the entry of a closed flow lasts %d s", entry.Timeout)
		}
		w.forget(t)
		if _, again, _ := w.askRemote(t, at, f, tcp); again != own {
			t.Errorf("the flow gets %s, want %s: the entry is its own", again, own)
		}
		w.forget(t)
		flushKernel(t)
		w.permit(t, false)
		question, own, backend = w.connected(t, at, f)
		w.permit(t, true)
		kernelTracks(t, tcp, own, backend, kernel.StatusSeenReply|kernel.StatusAssured, established)
		question.flags, question.ack = rst, 0
		w.run(t, at, question.frame(t))
		if entry := kernelEntry(t, tcp, own, backend); entry == nil || entry.Mark != 0 || entry.Timeout < 90 || entry.Timeout > 100 {
			t.Errorf("another flow's entry is now %+v, want it as it was, with a timeout of 100 s", entry)
		}
	})
	w.apply(t, pods)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		w.permit(t, true)
		flushKernel(t)
		if _, own, backend := w.connected(t, at, f); kernelEntry(t, tcp, own, backend) != nil {
			t.Error("a flow to a pod has an entry in the kernel's conntrack")
		}
	})
}

// flushKernel deletes all flows of the kernel's conntrack of the node.
func flushKernel(t testing.TB) {
	t.Helper()
	c, err := kernel.Dial(nil)
	must(t, err)
	defer c.Close()
	must(t, c.Flush())
}
