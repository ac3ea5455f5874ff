// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// soon is how long traffic may miss a new pod.
const soon = time.Second

// P1: the shortcut follows pods that end, and come back with the same address: with another device, in another
// namespace, at another node, with or without an agent. Traffic never reaches the one before.
func TestPodsComeAndGo(t *testing.T) {
	for _, layout := range []lab.PodLayout{lab.PodsRouted, lab.PodsBridge} {
		t.Run(string(layout), func(t *testing.T) {
			w := startWorld(t, lab.Shape{Pods: layout})
			w.reach("a1", "a2")
			w.reach("b1", "a2")
			w.must(w.Unplug(w.Host("node-a"), w.Host("a3")))
			w.replace("a2", "a3") // a3's namespace is the new a2
			w.answeredBy("a2", "a3", "node-a", "a1", "b1")
			w.must(w.agents["node-a"].Kill())
			w.answeredBy("a2", "a3", "a1", "b1")
			w.must(w.Unplug(w.Host("node-a"), w.Host("a2")))
			w.plug("a2", "node-a", "a2")
			w.answeredBy("a2", "a2", "node-a", "a1", "b1")
			w.must(w.agents["node-a"].Start())
			w.meet("node-a", "a1", "a2")
			w.awaitPods("node-a", "a1", "a2")
			if layout == lab.PodsRouted {
				w.moves()
				w.flaps()
				w.hundredPods()
			} else {
				w.claims()
			}
			w.wantTables()
			w.wantCleanup()
		})
	}
}

// replace ends a pod and gives its address to a namespace without a device.
func (w *world) replace(pod, namespace string) {
	w.t.Helper()
	w.must(w.Unplug(w.Host("node-a"), w.Host(pod)))
	w.plug(namespace, "node-a", pod)
}

// plug connects a namespace to a node as a pod. At a bridge it announces itself, as network plugins have it do: others
// on the link have the MAC address of the pod before.
func (w *world) plug(namespace, node, pod string) {
	w.t.Helper()
	w.must(w.Plug(w.Host(namespace), w.Host(node), w.Host(pod)))
	if w.Shape.Pods == lab.PodsBridge {
		w.announce(namespace, w.Host(pod))
	}
}

// answeredBy checks that requests to a pod's addresses are answered from a namespace soon, and from no other one at
// any time.
func (w *world) answeredBy(pod, namespace string, from ...string) {
	w.t.Helper()
	for _, host := range from {
		for _, to := range addresses(w.Host(pod), lab.PortUDP) {
			begin := time.Now()
			for {
				answer, err := w.askOnce(host, to)
				if err == nil && answer.Pod != namespace {
					w.t.Errorf("%s: %s was answered by %s, not %s", host, to, answer.Pod, namespace)
				}
				if err == nil {
					break
				}
				if time.Since(begin) > soon*load {
					w.t.Errorf("%s: %s has not answered for %v: %v", host, to, time.Since(begin), err)
					break
				}
			}
		}
	}
}

// load is how much longer everything may take on a busy machine.
const load = 5

// moves has b3 take over the address of a2 at the other node. The fabric learns the route.
func (w *world) moves() {
	w.t.Helper()
	w.must(w.Unplug(w.Host("node-b"), w.Host("b3")))
	w.must(w.Unplug(w.Host("node-a"), w.Host("a2")))
	w.plug("b3", "node-b", "a2")
	for i, to := range addresses(w.Host("a2"), 0) {
		via := addresses(w.Host("node-b"), 0)[i].Addr().String()
		w.run("fabric", "ip", "route", "replace", to.Addr().String(), "via", via, "dev", "node-b")
		// node-a's own pod range is unreachable apart from its pods.
		gateway := []string{"192.168.100.254", "fd00:100::fe"}[i]
		w.run("node-a", "ip", "route", "replace", to.Addr().String(), "via", gateway, "dev", "eth0")
	}
	w.answeredBy("a2", "b3", "a1", "b1", "node-a", "client")
	w.must(w.Unplug(w.Host("node-b"), w.Host("a2")))
	for _, to := range addresses(w.Host("a2"), 0) {
		w.run("fabric", "ip", "route", "del", to.Addr().String())
		w.run("node-a", "ip", "route", "del", to.Addr().String())
	}
	w.plug("a2", "node-a", "a2")
	w.answeredBy("a2", "a2", "a1", "b1")
	w.awaitPods("node-a", "a1", "a2")
}

// flaps renames the device of a1, and takes it down and up.
func (w *world) flaps() {
	w.t.Helper()
	// Before Linux 6.2 a device that is up keeps its name.
	w.run("node-a", "sh", "-c", "ip link set a1 name renamed && ip link set renamed down || { ip link set a1 down && ip link set a1 name renamed; }")
	if _, err := w.askOnce("a2", addresses(w.Host("a1"), lab.PortUDP)[0]); err == nil {
		w.t.Error("a1 answered although its device is down")
	}
	a1 := w.Host("a1")
	w.run("node-a", "sh", "-c", fmt.Sprintf("ip link set renamed up name a1 && ip addr add fe80::1/64 dev a1 nodad && ip route add %s dev a1 && ip route add %s dev a1",
		a1.Addr4, a1.Addr6))
	w.answeredBy("a1", "a1", "a2", "b1")
	w.awaitPods("node-a", "a1", "a2")
}

// claims has a2 claim the address of a1 at the bridge: what the bridge does then the shortcut does, and a1 gets its
// address back as soon as it speaks again.
func (w *world) claims() {
	w.t.Helper()
	a1 := w.Host("a1")
	w.run("a2", "ip", "addr", "add", a1.Addr4.String()+"/32", "dev", "eth0")
	w.eventually("a2 answers for a1, as through the bridge", func() bool {
		// The kernel ignores it for a second after it has learned an address (locktime, arp(7)).
		w.announce("a2", a1)
		answer, err := w.askOnce("b1", netip.AddrPortFrom(a1.Addr4, lab.PortUDP))
		return err == nil && answer.Pod == "a2"
	})
	w.run("a2", "ip", "addr", "del", a1.Addr4.String()+"/32", "dev", "eth0")
	w.eventually("a1 has its address back", func() bool {
		w.announce("a1", a1)
		answer, err := w.askOnce("b1", netip.AddrPortFrom(a1.Addr4, lab.PortUDP))
		return err == nil && answer.Pod == "a1"
	})
	w.awaitPods("node-a", "a1", "a2")
}

// hundredPods has a network plugin make and delete pods as fast as it can. The caller checks that no row remains of
// them.
func (w *world) hundredPods() {
	w.t.Helper()
	var batch strings.Builder
	for i := range 100 {
		fmt.Fprintf(&batch, "link add p%d group 77 type veth peer name q%d netns %s\nlink set p%d up\nroute add 10.10.1.%d dev p%d\n",
			i, i, netnsName(w.Host("a3")), i, 100+i, i)
	}
	w.run("node-a", "sh", "-c", "ip -batch - <<'E'\n"+batch.String()+"E\n")
	w.eventually("the table has all pods", func() bool {
		return len(table[bpf.Address, shortcut.Row](w, w.agents["node-a"].BPFFS(), bpf.PodMapPods)) == 100+4
	})
	w.run("node-a", "ip", "link", "del", "group", "77") // one by one each takes as long as an RCU grace period
}

// wantTables waits until the tables of node-a have the pods a1 and a2, as the kernel has them, and nothing else.
func (w *world) wantTables() {
	w.t.Helper()
	want := map[bpf.Address]shortcut.Row{}
	devices, links := map[uint32]bool{}, map[uint32]bool{}
	w.meet("node-a", "a1", "a2")
	gateway := ""
	if w.Shape.Pods == lab.PodsBridge {
		gateway = lab.BridgeDevice
	}
	for _, name := range []string{"a1", "a2"} {
		row := w.rowOf(name, gateway)
		for _, addr := range addresses(w.Host(name), 0) {
			want[bpf.AddressFrom(addr.Addr())] = row
		}
		devices[row.Device], links[row.Device] = true, true
	}
	devices[w.device("node-a", "eth0").Index] = true
	bpffs, got := w.agents["node-a"].BPFFS(), ""
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the tables have %s, want %v %v %v", got, want, devices, links)
		}
	}()
	w.eventually("the tables have just a1 and a2", func() bool {
		pods := table[bpf.Address, shortcut.Row](w, bpffs, bpf.PodMapPods)
		atDevices := keys(table[uint32, shortcut.DeviceRow](w, bpffs, bpf.PodMapPodDevices))
		atLinks := keys(table[uint32, uint32](w, bpffs, bpf.PodMapPodLinks))
		got = fmt.Sprint(pods, atDevices, atLinks)
		return maps.Equal(pods, want) && maps.Equal(atDevices, devices) && maps.Equal(atLinks, links)
	})
}

// wantCleanup checks that cleanup removes the programs and the tables, and that pods talk without them.
func (w *world) wantCleanup() {
	w.t.Helper()
	a := w.agents["node-a"]
	w.must(a.Stop())
	_, err := a.CLI("cleanup")
	w.must(err)
	if _, err := ebpf.LoadPinnedMap(bpf.TablePath(a.BPFFS(), bpf.PodMapPods), nil); err == nil {
		w.t.Error("the table of pods is left after cleanup")
	}
	if left, err := os.ReadDir(a.BPFFS()); !errors.Is(err, os.ErrNotExist) {
		w.t.Errorf("cleanup left %v, %v", left, err)
	}
	w.reach("a1", "a2")
	w.reach("b1", "a1")
}

func table[K comparable, V any](w *world, bpffs, name string) map[K]V {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, name), nil)
	w.must(err)
	defer m.Close()
	all := map[K]V{}
	var k K
	var v V
	it := m.Iterate()
	for it.Next(&k, &v) {
		all[k] = v
	}
	return all // a table that changes meanwhile is read again
}

func keys[K comparable, V any](m map[K]V) map[K]bool {
	all := map[K]bool{}
	for k := range m {
		all[k] = true
	}
	return all
}
