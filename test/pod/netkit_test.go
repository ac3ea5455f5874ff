// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// P1, P2: pods behind netkit devices, with and without MAC addresses, take the shortcut as others do, past the queue of
// their own device; through agents that restart and pods that are replaced. A device with a program of others, or whose
// policy is to drop, stays on the stack, and the policy stays in force.
func TestNetkit(t *testing.T) {
	if missing := lab.NetkitMissing(); missing != "" {
		t.Skip(missing)
	}
	for _, layout := range []lab.PodLayout{lab.PodsNetkit, lab.PodsNetkitL2} {
		t.Run(string(layout), func(t *testing.T) {
			w := startWorld(t, lab.Shape{Pods: layout})
			w.wantShortcut()
			w.wantStack()
			w.wantHops("a1", "a2", 1)
			w.wantHops("a1", "b1", 3)
			w.wantPastTheQueue()
			w.must(w.Unplug(w.Host("node-a"), w.Host("a3")))
			w.replace("a2", "a3") // a3's namespace is the new a2
			w.answeredBy("a2", "a3", "node-a", "a1", "b1")
			w.must(w.Unplug(w.Host("node-a"), w.Host("a2")))
			w.plug("a2", "node-a", "a2")
			w.answeredBy("a2", "a2", "node-a", "a1", "b1")
			w.awaitPods("node-a", "a1", "a2")
			w.keepsItsLink()
			if layout == lab.PodsNetkit {
				w.staysOnTheStack()
			}
			w.wantTables()
			w.wantNoneInvalid()
			w.wantCleanup()
			if found := w.atHook("a1", ebpf.AttachNetkitPeer); len(found) > 0 {
				t.Errorf("after cleanup %v is at a1", found)
			}
		})
	}
}

// atHook are the programs at a hook of a device of node-a.
func (w *world) atHook(device string, hook ebpf.AttachType) (all []string) {
	w.t.Helper()
	index := int(w.device("node-a", device).Index)
	w.must(w.Host("node-a").Do(func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return err
		}
		for _, p := range found.Programs {
			program, err := ebpf.NewProgramFromID(p.ID)
			if err != nil {
				return err
			}
			info, err := program.Info()
			program.Close()
			if err != nil {
				return err
			}
			all = append(all, info.Name)
		}
		return nil
	}))
	return all
}

// wantPastTheQueue has pods of node-a send: their packets leave where they are sent, and their device receives none.
func (w *world) wantPastTheQueue() {
	w.t.Helper()
	if found := w.atHook("a1", ebpf.AttachNetkitPeer); !slices.Equal(found, []string{bpf.PodNetkitProgBeelinePodNetkit}) {
		w.t.Fatalf("at the peer hook of a1: %v", found)
	}
	capture, err := w.Host("node-a").Capture(lab.CaptureOptions{Devices: []string{"a1"}, Keep: func(p *lab.CapturedPacket) bool {
		return !p.Sent && p.Layers().Layer(layers.LayerTypeUDP) != nil
	}})
	w.must(err)
	var queued []string
	for _, to := range []string{"a2", "b1", "client"} {
		for _, addr := range addresses(w.Host(to), 0) {
			_, err := w.ask("a1", "udp", netip.AddrPortFrom(addr.Addr(), lab.PortUDP))
			w.must(err)
		}
	}
	packets, err := capture.Stop()
	w.must(err)
	for _, p := range packets {
		queued = append(queued, p.Layers().NetworkLayer().NetworkFlow().Dst().String())
	}
	want := []string{w.Host("client").Addr4.String(), w.Host("client").Addr6.String()}
	if !slices.Equal(queued, want) {
		w.t.Errorf("packets from a1 to %v were queued for the node, want those to %v", queued, want)
	}
}

// keepsItsLink restarts the agent, which replaces its program in the link; and detaches that, which the agent restores.
func (w *world) keepsItsLink() {
	w.t.Helper()
	a := w.agents["node-a"]
	path := fmt.Sprintf("%s/links/%s-%d-peer", a.BPFFS(), shortcut.NetkitComponentName, w.device("node-a", "a1").Index)
	before := w.linkAt(path)
	w.must(a.Kill())
	w.reach("a1", "a2")
	w.must(a.Start())
	w.awaitPods("node-a", "a1", "a2")
	after := w.linkAt(path)
	if before.ID != after.ID || before.Program == after.Program {
		w.t.Errorf("the link was %d with program %d, and is %d with %d: want the same link, another program", before.ID, before.Program, after.ID, after.Program)
	}
	l, err := link.LoadPinnedLink(path, nil)
	w.must(err)
	w.must(l.Detach())
	l.Close()
	w.eventually("the agent attaches its program again", func() bool { return len(w.atHook("a1", ebpf.AttachNetkitPeer)) == 1 })
	w.wantPastTheQueue()
}

func (w *world) linkAt(path string) *link.Info {
	w.t.Helper()
	l, err := link.LoadPinnedLink(path, nil)
	w.must(err)
	defer l.Close()
	info, err := l.Info()
	w.must(err)
	return info
}

// staysOnTheStack has others use the hooks and policies of netkit at a1 and a2.
func (w *world) staysOnTheStack() {
	w.t.Helper()
	remove := w.foreignNetkit(map[string]ebpf.AttachType{"a1": ebpf.AttachNetkitPeer, "a2": ebpf.AttachNetkitPrimary})
	w.awaitFilters(map[string][]string{
		"a1": {"BPF program foreign_netkit, id N (netkit peer)"}, "a2": {"BPF program foreign_netkit, id N (netkit primary)"},
	})
	w.eventually("only the program of others is at a1", func() bool {
		return slices.Equal(w.atHook("a1", ebpf.AttachNetkitPeer), []string{"foreign_netkit"})
	})
	w.reach("a1", "a2")
	remove()
	w.awaitFilters(nil)
	for _, c := range []struct {
		device, filter string
		policy         int // attribute of netlink
	}{
		{"a1", "netkit peer policy blackhole", nl.IFLA_NETKIT_PEER_POLICY},
		{"a2", "netkit policy blackhole", nl.IFLA_NETKIT_POLICY},
	} {
		w.setPolicy(c.device, c.policy, netlink.NETKIT_POLICY_BLACKHOLE)
		w.awaitFilters(map[string][]string{c.device: {c.filter}})
		w.eventually("the policy of "+c.device+" drops", func() bool {
			_, err := w.askOnce("a1", addresses(w.Host("a2"), lab.PortUDP)[0])
			return err != nil
		})
		w.setPolicy(c.device, c.policy, netlink.NETKIT_POLICY_FORWARD)
		w.awaitFilters(nil)
	}
	w.awaitPods("node-a", "a1", "a2")
	w.reach("a1", "a2")
}

// setPolicy sets a policy of a netkit device of node-a. The library would also set the mode, which the kernel refuses.
func (w *world) setPolicy(device string, attribute int, policy netlink.NetkitPolicy) {
	w.t.Helper()
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	target := nl.NewIfInfomsg(unix.AF_UNSPEC)
	target.Index = int32(w.device("node-a", device).Index)
	request.AddData(target)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("netkit"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(attribute, nl.Uint32Attr(uint32(policy)))
	request.AddData(info)
	w.must(w.Host("node-a").Do(func() error {
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	}))
}

// foreignNetkit attaches a program that does nothing at hooks of netkit, as network plugins do.
func (w *world) foreignNetkit(at map[string]ebpf.AttachType) (remove func()) {
	w.t.Helper()
	const next = -1 // NETKIT_NEXT
	program := w.passing("foreign_netkit", next)
	var links []link.Link
	for device, hook := range at {
		index := int(w.device("node-a", device).Index)
		w.must(w.Host("node-a").Do(func() error {
			l, err := link.AttachNetkit(link.NetkitOptions{Interface: index, Program: program, Attach: hook})
			links = append(links, l)
			return err
		}))
	}
	return func() {
		for _, l := range links {
			w.must(l.Close())
		}
	}
}
