// SPDX-License-Identifier: Apache-2.0

// Package kernels tests what depends on the running kernel: that its verifier accepts every program, and which
// hooks it has. scripts/kernels runs it, and tests of other packages, under kernels of distributions (`make
// test-kernels`).
package kernels

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/internal/shortcut/offload"
	"beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/internal/shortcut/socket/sockgc"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

// program is the beeline binary that agents run.
var program string

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(node.Run(m, &program))
}

func bpffsOf(node *lab.Host) string { return filepath.Join(node.BPFFS, "beeline") }

// openOn loads everything that an agent on a node loads. The node may have the tables of an earlier agent.
func openOn(t *testing.T, node *lab.Host, limits bpf.Limits) (bpf.EdgeKernel, *mesh.Datapath) {
	t.Helper()
	enabled := func() bool { return true }
	options := func() *bpf.EdgeOptions {
		return &bpf.EdgeOptions{SNATPorts: []bpf.PortRange{{First: 1024, Last: 29999}, {First: 61000, Last: 65535}}, AcceptDSR: true}
	}
	statistics := func() *bpf.SocketStatsOptions { return &bpf.SocketStatsOptions{PerBackend: true} }
	sidecars := &mesh.Datapath{Options: &mesh.Options{OutboundPort: 15001, InboundPort: 15006, Sockmap: true}}
	d, err := bpf.Open(bpf.Options{
		BPFFS: bpffsOf(node), CgroupRoot: node.CgroupRoot, BindProtection: true, Limits: limits,
		Components: []*bpf.Component{bpf.Socket(), bpf.Edge(options), bpf.SocketStats(statistics), pod.Programs(enabled), pod.NetkitPrograms(), pod.L3Programs(), offload.Programs(enabled), sidecars.Component()},
	})
	if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
		t.Fatalf("%v\n%-60v", err, refused)
	}
	must(t, err)
	t.Cleanup(d.Close)
	return bpf.NewEdgeKernel(d, false), sidecars
}

// must ends the test if a step fails that is not under test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The kernel's verifier accepts every program: as an agent loads them, to explain a connect(), and while the
// tables of an earlier agent are migrated.
func TestProgramsLoad(t *testing.T) {
	node := lab.New(t).Nodes()[0]
	bpffs := bpffsOf(node)
	must(t, node.Do(func() error {
		d, sidecars := openOn(t, node, bpf.Limits{Flows: 20000})
		device := tun(t)
		must(t, d.AttachEdgeTC(device)) // loads the programs for such devices
		must(t, d.SetDevices(pod.L3ComponentName, device))
		attachMesh(t, sidecars, node.Pods()[0]) // loads the program for namespaces
		wantLoaded(t, d.Datapath, sidecars, bpffs)
		must(t, d.SetDevices(pod.L3ComponentName))
		must(t, d.DetachEdge(device))
		must(t, d.Attach())
		wantExplained(t, bpffs)
		eth0, err := netlink.LinkByName("eth0")
		must(t, err)
		must(t, d.AttachEdgeTC(eth0.Attrs().Index)) // by links, or by filters
		d.Close()
		return nil
	}))
}

// Agents serve with each of the programs, one of them after the tables of an earlier agent are migrated. `make test`
// has no time for it in an emulated machine, where the verifier takes minutes.
func TestProgramsServe(t *testing.T) {
	l := lab.New(t)
	node := l.Nodes()[0]
	must(t, node.Do(func() error {
		d, _ := openOn(t, node, bpf.Limits{Flows: 20000})
		d.Close()
		return nil
	}))
	wantTraffic(t, l, startAgents(t, l))
	left, err := filepath.Glob(filepath.Join(bpffsOf(node), "tables_*"))
	must(t, err)
	if len(left) != 1 {
		t.Errorf("the tables' directories are %v, want one", left)
	}
}

// attachMesh attaches the sidecar shortcut to a pod.
func attachMesh(t *testing.T, d *mesh.Datapath, pod *lab.Host) {
	t.Helper()
	must(t, d.AttachCgroup(pod.Cgroup))
	namespace, err := netns.Open(pod.NetNS)
	must(t, err)
	defer namespace.Close()
	var st unix.Stat_t
	must(t, unix.Stat(pod.Cgroup, &st))
	must(t, d.AttachInbound(st.Ino, namespace))
}

// wantLoaded checks that each program is loaded. It prints how many instructions the verifier processed, of the
// 1,000,000 that it allows a program.
func wantLoaded(t *testing.T, d *bpf.Datapath, sidecars *mesh.Datapath, bpffs string) {
	t.Helper()
	for part, reason := range d.Unavailable {
		t.Errorf("%s: %s", part, reason)
	}
	sweep, err := sockgc.OpenIterators(d, bpf.HaveSockDestroy())
	must(t, err)
	defer sweep.Close()
	loaded := verified(t, bpf.TablePath(bpffs, ""))
	for _, load := range []func() (*ebpf.CollectionSpec, error){
		bpf.LoadSock, bpf.LoadBind, bpf.LoadSockGC, bpf.LoadEdgeTC, bpf.LoadEdgeL3, bpf.LoadEdgeXDP,
		bpf.LoadSockStats, bpf.LoadPod, bpf.LoadOffload, bpf.LoadOffloadL3,
		bpf.LoadMesh, bpf.LoadMeshInbound,
	} {
		spec, err := load()
		must(t, err)
		if spec.Programs[bpf.MeshProgBeelineMeshMessage] != nil && sidecars.NoSockmap != "" {
			t.Log(sidecars.NoSockmap)
			wantVerified(t, spec)
			delete(spec.Programs, bpf.MeshProgBeelineMeshMessage)
			delete(spec.Programs, bpf.MeshProgBeelineMeshRead)
		}
		// These use no table, and are loaded with the one for messages.
		delete(spec.Programs, bpf.MeshProgBeelineMeshUnread)
		delete(spec.Programs, bpf.MeshProgBeelineMeshReceive)
		for name := range spec.Programs {
			if _, ok := loaded[name]; !ok {
				t.Errorf("%s is not loaded; the loaded programs are %v", name, loaded)
			}
		}
	}
	reroute, err := bpf.LoadMeshReroute() // for devices of virtual machines
	must(t, err)
	wantVerified(t, reroute)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(loaded)) {
		fmt.Fprintf(&text, "\n%-28s %7d", name, loaded[name])
	}
	t.Logf("instructions verified on Linux %s:%s", release(t), &text)
}

// wantVerified checks that the verifier accepts the programs of an object that an agent does not load.
func wantVerified(t *testing.T, spec *ebpf.CollectionSpec) {
	t.Helper()
	c, err := ebpf.NewCollection(spec)
	if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
		t.Fatalf("%v\n%-60v", err, refused)
	}
	must(t, err)
	c.Close()
}

// migrate attaches the edge of a datapath to a device, by links or by filters, and opens another one with other
// limits: the programs that are attached meanwhile may call those of the earlier one.
func migrate(t *testing.T, node *lab.Host, d bpf.EdgeKernel, device int) {
	t.Helper()
	must(t, d.AttachEdgeTC(device))
	d.Close()
	d, _ = openOn(t, node, bpf.Limits{Flows: 20000})
	err := d.Attach()
	if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
		t.Fatalf("%v\n%-60v", err, refused)
	}
	must(t, err)
	attached, err := d.EdgeAttachments()
	must(t, err)
	if len(attached) != 2 {
		t.Errorf("attached are %+v, want ingress and egress", attached)
	}
}

// tun is a new device without MAC addresses in the current network namespace.
func tun(t *testing.T) (index int) {
	t.Helper()
	device := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}
	must(t, netlink.LinkAdd(device))
	for _, f := range device.Fds {
		f.Close()
	}
	link, err := netlink.LinkByName(device.Name)
	must(t, err)
	return link.Attrs().Index
}

// wantExplained explains a connect() to a destination without a Service, which passes.
func wantExplained(t *testing.T, bpffs string) {
	t.Helper()
	for _, to := range []string{"192.0.2.1:80", "[2001:db8::1]:80"} {
		e, other, err := bpf.ExplainConnect(bpffs, bpf.ConnectCall{NetnsCookie: 1, Destination: netip.MustParseAddrPort(to), Protocol: 6})
		if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
			t.Fatalf("%v\n%-60v", err, refused)
		}
		must(t, err)
		if other || bpf.ConnectReason(e.Reason) != bpf.ConnectNoFrontend || bpf.Verdict(e.Verdict) != bpf.Pass || bpf.ConnectedTo(e).String() != to {
			t.Errorf("to %s: %+v, another version: %v", to, e, other)
		}
	}
}

// verified returns how many instructions the verifier processed, for each program that uses a table in a
// directory.
func verified(t *testing.T, tables string) map[string]uint32 {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(tables, "*"))
	must(t, err)
	ids := map[ebpf.MapID]bool{}
	for _, pin := range pins {
		table, err := ebpf.LoadPinnedMap(pin, nil)
		must(t, err)
		info, err := table.Info()
		must(t, err)
		table.Close()
		id, _ := info.ID()
		ids[id] = true
	}
	all := map[string]uint32{}
	for id, err := ebpf.ProgramGetNextID(0); !errors.Is(err, os.ErrNotExist); id, err = ebpf.ProgramGetNextID(id) {
		must(t, err)
		program, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // somebody else's, and removed
		}
		must(t, err)
		info, err := program.Info()
		program.Close()
		must(t, err)
		if used, _ := info.MapIDs(); !slices.ContainsFunc(used, func(id ebpf.MapID) bool { return ids[id] }) {
			continue
		}
		functions, err := info.FuncInfos() // info.Name has only 15 characters of it
		must(t, err)
		all[functions[0].Func.Name], _ = info.VerifiedInstructions()
	}
	return all
}

// The verifier accepts the dispatcher, and the edge's program in it.
func TestSharedDevice(t *testing.T) {
	needs.Kernel(t, needs.Replacement)
	node := lab.New(t).Nodes()[0]
	t.Setenv("LIBXDP_BPFFS", node.BPFFS)
	bpffs := filepath.Join(node.BPFFS, "beeline")
	options := func() *bpf.EdgeOptions {
		return &bpf.EdgeOptions{SNATPorts: []bpf.PortRange{{First: 1024, Last: 29999}}}
	}
	datapath, err := bpf.Open(bpf.Options{BPFFS: bpffs, CgroupRoot: node.CgroupRoot, Components: []*bpf.Component{bpf.Socket(), bpf.Edge(options)}})
	must(t, err)
	t.Cleanup(datapath.Close)
	d := bpf.NewEdgeKernel(datapath, true)
	must(t, node.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		must(t, err)
		for range 2 { // the second time it exists already
			chain, err := d.AttachEdgeXDP(device.Attrs().Index, bpf.XDPNative)
			if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
				t.Fatalf("%v\n%-60v", err, refused)
			}
			must(t, err)
			if len(chain) != 1 || !chain[0].Own || chain[0].Priority != bpf.EdgePriority {
				t.Errorf("the dispatcher has %+v, want only the edge", chain)
			}
		}
		attached, err := d.EdgeAttachments()
		must(t, err)
		if len(attached) != 1 || len(attached[0].Chain) != 1 {
			t.Errorf("attached: %+v", attached)
		}
		t.Logf("instructions of programs on Linux %s: %v", release(t), verified(t, bpf.TablePath(bpffs, "")))
		must(t, d.DetachEdge(device.Attrs().Index))
		if left, err := d.EdgeAttachments(); err != nil || len(left) > 0 {
			t.Errorf("left: %+v, %v", left, err)
		}
		return nil
	}))
}

// The edge is attached to tc by links if the kernel has them (tcx, Linux 6.6), else as filters of the qdisc
// clsact, and to a veth natively by XDP. Those for devices without MAC addresses are migrated like others.
func TestHooks(t *testing.T) {
	node := lab.New(t).Nodes()[0]
	must(t, node.Do(func() error {
		d, _ := openOn(t, node, bpf.Limits{})
		device, err := netlink.LinkByName("eth0")
		must(t, err)
		must(t, d.AttachEdgeTC(device.Attrs().Index))
		_, err = d.AttachEdgeXDP(device.Attrs().Index, bpf.XDPNative)
		must(t, err)
		attached, err := d.EdgeAttachments()
		must(t, err)
		var got []string
		for _, a := range attached {
			how := "filter"
			if a.LinkID != 0 {
				how = "link"
			}
			got = append(got, fmt.Sprint(a.Hook, " by ", how))
		}
		want := "egress by filter, ingress by filter, xdp by link"
		if atLeast(t, 6, 6) {
			want = "egress by link, ingress by link, xdp by link"
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("Linux %s: attached are %s, want %s", release(t), got, want)
		}
		must(t, d.DetachEdge(device.Attrs().Index))
		must(t, d.Attach())
		migrate(t, node, d, tun(t))
		return nil
	}))
}

// release is the running kernel's: 6.1.0-56-amd64.
func release(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	must(t, unix.Uname(&name))
	return unix.ByteSliceToString(name.Release[:])
}

// atLeast reports whether the kernel's release is at least a version.
func atLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var gotMajor, gotMinor int
	if _, err := fmt.Sscanf(release(t), "%d.%d", &gotMajor, &gotMinor); err != nil {
		t.Fatalf("version of Linux %s: %v", release(t), err)
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
