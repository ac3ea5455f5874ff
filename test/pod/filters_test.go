// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"beeline.io/beeline/test/lab"
)

// policy drops UDP from a1 to a2.
const policy = `table inet np {
	chain forward {
		type filter hook forward priority 1; policy accept;
		ip saddr 10.10.1.11 ip daddr 10.10.1.12 udp dport %d drop
	}
}`

// A policy that appears has its effect on packets of pods that took the shortcut, and so have queues and programs; an
// allowed connection survives both changes of its path. With --pod-ignore-filters the shortcut bypasses them.
func TestFilters(t *testing.T) {
	w := newWorld(t, lab.Shape{}, "--pod-devices=auto")
	agent := w.agents["node-a"]
	w.must(agent.Start())
	w.awaitPods("node-a", "a1", "a2", "a3")
	a1, a2 := w.Host("a1"), w.Host("a2")
	conn, err := a1.Dial(t.Context(), "tcp", netip.AddrPortFrom(a2.Addr4, lab.PortTCP).String())
	w.must(err)
	defer conn.Close()
	alive := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience/4)
		defer cancel()
		if _, err := lab.Ask(ctx, conn, when); err != nil {
			t.Errorf("%s: the connection ended: %v", when, err)
		}
		if n := w.invalid("node-a"); n > 0 {
			t.Errorf("%s: %d packets were invalid", when, n)
		}
	}
	alive("on the shortcut")
	w.wantDatagrams(true)

	w.endsFlow(func() { w.rules("node-a", fmt.Sprintf(policy, lab.PortUDP)) })
	w.awaitFilters(map[string][]string{"a1": {"nftables rule in chain forward of table inet np: drop"}})
	w.wantDatagrams(false)
	alive("on the stack")

	w.run("node-a", "tc", "qdisc", "add", "dev", "a3", "root", "tbf", "rate", "1gbit", "burst", "1mb", "latency", "1ms")
	detach := w.foreignPrograms()
	w.awaitFilters(map[string][]string{
		"a1": {"nftables rule in chain forward of table inet np: drop"},
		"a2": {"BPF program foreign_tcx, id N (tcx egress)"},
		"a3": {"BPF program foreign_tc, id N (tc filter at ingress)", "qdisc tbf"},
	})
	text, err := agent.CLI("status", "-v")
	if err != nil || !strings.Contains(text, "qdisc tbf") || !strings.Contains(text, "PodShortcutWithheld: a2") {
		t.Errorf("status -v: %v:\n%s", err, text)
	}

	detach()
	w.run("node-a", "tc", "qdisc", "del", "dev", "a3", "root")
	w.run("node-a", "nft", "delete", "table", "inet", "np")
	w.awaitFilters(nil)
	alive("back on the shortcut")

	w.rules("node-a", fmt.Sprintf(policy, lab.PortUDP))
	w.must(agent.Stop())
	agent.Flags = append(agent.Flags, "--pod-ignore-filters")
	w.must(agent.Start())
	w.awaitPods("node-a", "a1", "a2", "a3")
	w.awaitFilters(map[string][]string{"a1": {"nftables rule in chain forward of table inet np: drop"}})
	w.wantDatagrams(true)
	alive("with filters ignored")
}

// How long flows of the shortcut may bypass a new policy (docs/operate/pods.md): policyDelay if the kernel reports it.
const (
	policyDelay = time.Second
	auditDelay  = 5 * time.Second
)

// endsFlow has a flow of datagrams of a1 to a2 run while a policy that denies it is made, and waits for its end.
func (w *world) endsFlow(deny func()) {
	w.t.Helper()
	w.endsFlowOf("a1", netip.AddrPortFrom(w.Host("a2").Addr4, lab.PortUDP), policyDelay, deny)
}

// endsFlowOf is endsFlow with another pod and target, and another delay.
func (w *world) endsFlowOf(from string, to netip.AddrPort, delay time.Duration, deny func()) {
	w.t.Helper()
	conn, err := w.Host(from).Dial(w.t.Context(), "udp", to.String())
	w.must(err)
	defer conn.Close()
	answered := func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := lab.Ask(ctx, conn, "hello")
		return err == nil
	}
	w.eventually("the flow runs", answered)
	deny()
	begin, last := time.Now(), time.Now()
	for time.Since(last) < time.Second && time.Since(begin) < 2*delay+soon {
		if answered() {
			last = time.Now()
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.t.Logf("the policy took effect after %v", last.Sub(begin))
	if last.Sub(begin) > delay+soon {
		w.t.Errorf("the flow went on for %v after the policy was there", last.Sub(begin))
	}
}

// wantDatagrams checks whether a datagram of a1 reaches a2.
func (w *world) wantDatagrams(want bool) {
	w.t.Helper()
	wait := patience / 4
	if !want {
		wait = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), wait)
	defer cancel()
	_, err := w.Host("a1").Request(ctx, "udp", netip.AddrPortFrom(w.Host("a2").Addr4, lab.PortUDP).String(), "hello")
	if (err == nil) != want {
		w.t.Errorf("a datagram of a1 to a2: %v; want an answer: %t", err, want)
	}
}

// awaitFilters waits until node-a's status has these filters by device, and no others.
func (w *world) awaitFilters(want map[string][]string) {
	w.t.Helper()
	var got map[string][]string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("filters: %v", got)
		}
	}()
	w.eventually(fmt.Sprintf("node-a finds %v", want), func() bool {
		got = map[string][]string{}
		for _, d := range w.pods("node-a").Devices {
			for _, f := range d.PacketFilters {
				got[d.Name] = append(got[d.Name], withoutID(f))
			}
		}
		equal := len(got) == len(want)
		for device, filters := range want {
			equal = equal && slices.Equal(got[device], filters)
		}
		return equal
	})
}

// withoutID replaces the ID of a program.
func withoutID(text string) string {
	before, after, found := strings.Cut(text, ", id ")
	if !found {
		return text
	}
	return before + ", id N" + strings.TrimLeft(after, "0123456789")
}

// foreignPrograms attaches programs that do nothing at devices of node-a, as network plugins do: at egress of a2, and
// at ingress of a3 and egress of eth0, which the shortcut does not bypass, by filters.
func (w *world) foreignPrograms() (detach func()) {
	w.t.Helper()
	var remove []func() error
	w.must(w.Host("node-a").Do(func() error {
		tcx, err := w.attachTCX("a2")
		if err != nil {
			return err
		}
		remove = append(remove, tcx.Close)
		for device, parent := range map[string]uint32{"a3": netlink.HANDLE_MIN_INGRESS, "eth0": netlink.HANDLE_MIN_EGRESS} {
			filter, err := w.attachFilter(device, parent)
			if err != nil {
				return err
			}
			remove = append(remove, func() error { return netlink.FilterDel(filter) })
		}
		return nil
	}))
	return func() {
		w.t.Helper()
		w.must(w.Host("node-a").Do(func() error {
			for _, f := range remove {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

func (w *world) attachTCX(device string) (link.Link, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	const next = -1 // TCX_NEXT
	return link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: w.passing("foreign_tcx", next), Attach: ebpf.AttachTCXEgress})
}

func (w *world) attachFilter(device string, parent uint32) (netlink.Filter, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	index := l.Attrs().Index
	err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil {
		return nil, err
	}
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Priority: 1, Protocol: 3 /* ETH_P_ALL */},
		Fd:          w.passing("foreign_tc", int32(netlink.TC_ACT_UNSPEC)).FD(), Name: "foreign", DirectAction: true,
	}
	return f, netlink.FilterAdd(f)
}

// passing loads a program that returns a verdict.
func (w *world) passing(name string, verdict int32) *ebpf.Program {
	w.t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	w.must(err)
	w.t.Cleanup(func() { p.Close() })
	return p
}

// A rule that only marks packets is no filter, until something else on the node reads one of the bits.
func TestMarks(t *testing.T) {
	w := newWorld(t, lab.Shape{}, "--pod-devices=auto")
	w.must(w.agents["node-a"].Start())
	w.awaitPods("node-a", "a1", "a2", "a3")
	w.rules("node-a", `table inet np {
	chain forward {
		type filter hook forward priority 1; policy accept;
		ip daddr 10.10.1.11 meta mark set meta mark or 0x20000
		meta mark & 0x10000 != 0 drop
	}
}`)
	filter := func(reader string) map[string][]string {
		return map[string][]string{"a1": {"nftables rule in chain forward of table inet np: mark, which is read by " + reader}}
	}
	for _, reader := range []struct{ add, remove, what string }{
		{"ip rule add fwmark 0x20000/0x30000 lookup main", "ip rule del fwmark 0x20000/0x30000 lookup main", "the routing rule with fwmark 0x20000/0x30000"},
		{"ip -6 rule add fwmark 0x20000 lookup main", "ip -6 rule del fwmark 0x20000 lookup main", "the routing rule with fwmark 0x20000/0xffffffff"},
		{"tc qdisc add dev eth0 root tbf rate 1gbit burst 1mb latency 1ms", "tc qdisc del dev eth0 root", "qdisc tbf of eth0"},
	} {
		w.run("node-a", "sh", "-c", reader.add)
		w.awaitFilters(filter(reader.what))
		w.run("node-a", "sh", "-c", reader.remove)
		w.awaitFilters(nil)
	}
	w.run("node-a", "ip", "rule", "add", "fwmark", "0x40000/0x40000", "lookup", "main")
	w.rules("node-a", "add rule inet np forward ip daddr 10.10.1.11 meta mark 0x20000 drop") // so that a search is seen to have ended
	w.awaitFilters(map[string][]string{"a1": {"nftables rule in chain forward of table inet np: drop"}})
}
