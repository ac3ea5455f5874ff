// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/test/lab"
)

// edgeWorld is a node with a datapath that has an edge.
type edgeWorld struct {
	t          *testing.T
	node       *lab.Host
	options    Options
	edge       *EdgeOptions
	dispatcher bool
	device     int // eth0
}

func newEdgeWorld(t *testing.T) *edgeWorld {
	t.Helper()
	w := &edgeWorld{t: t, node: lab.New(t).Nodes()[0], edge: &EdgeOptions{SNATPorts: []PortRange{{1024, 29999}, {61000, 65535}}}}
	w.options = Options{BPFFS: w.node.BPFFS + "/beeline", CgroupRoot: w.node.CgroupRoot, Components: components(w.edge)}
	w.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			w.device = link.Attrs().Index
		}
		return err
	})
	return w
}

// components returns the components of a node with an edge, or with one that is disabled (nil).
func components(options *EdgeOptions) []*Component {
	return []*Component{Socket(), Edge(func() *EdgeOptions { return options })}
}

// open opens the datapath.
func (w *edgeWorld) open() EdgeKernel {
	w.t.Helper()
	d, err := Open(w.options)
	must(w.t, err)
	w.t.Cleanup(d.Close)
	return NewEdgeKernel(d, w.dispatcher)
}

// do runs a function in the node's network namespace.
func (w *edgeWorld) do(f func() error) {
	w.t.Helper()
	must(w.t, w.node.Do(f))
}

func (w *edgeWorld) attached() (all []EdgeAttachment) {
	w.t.Helper()
	w.do(func() (err error) {
		all, err = EdgeAttachments(w.options.BPFFS)
		return err
	})
	return all
}

// want compares what is attached: "2 egress, 2 ingress detached".
func (w *edgeWorld) want(want string) {
	w.t.Helper()
	var got []string
	for _, a := range w.attached() {
		text := fmt.Sprint(a.Device, " ", a.Hook)
		if a.Detached {
			text += " detached"
		}
		got = append(got, text)
	}
	if got := strings.Join(got, ", "); got != want {
		w.t.Errorf("attached: %s, want %s", got, want)
	}
}

// The edge's links stay when another agent replaces the programs, at start and without knowing the devices;
// an agent without an edge removes all of them, and so does cleanup.
func TestEdgeIsReplacedInPlace(t *testing.T) {
	w := newEdgeWorld(t)
	d := w.open()
	w.do(func() error { return errors.Join(d.AttachEdgeTC(w.device), attachXDP(d, w.device, XDPNative)) })
	hooks := fmt.Sprintf("%[1]d egress, %[1]d ingress, %[1]d xdp", w.device)
	w.want(hooks)
	before := w.attached()
	w.do(func() error { return errors.Join(d.AttachEdgeTC(w.device), attachXDP(d, w.device, XDPNative)) })
	if again := w.attached(); !slices.EqualFunc(before, again, func(a, b EdgeAttachment) bool { return a.LinkID == b.LinkID }) {
		t.Errorf("attached twice: %v, then %v", before, again)
	}
	d.Close()
	d = w.open()
	w.do(d.Attach)
	for i, a := range w.attached() {
		if a.LinkID != before[i].LinkID || a.ProgramID == before[i].ProgramID {
			t.Errorf("%s was %+v and is %+v", a.Hook, before[i], a)
		}
	}
	d.Close()
	off := w.options
	off.Components = components(nil)
	without, err := Open(off)
	must(t, err)
	w.do(without.Attach)
	w.want("")
	wantGone(t, TablePath(w.options.BPFFS, EdgeTCMapConntrack))
	without.Close()
	d = w.open()
	w.do(func() error { return errors.Join(d.AttachEdgeTC(w.device), d.Attach()) })
	d.Close()
	w.do(func() error { return Cleanup(w.options.BPFFS, nil, w.options.Components...) })
	w.want("")
	wantGone(t, w.options.BPFFS)
}

// newVeth makes a pair of devices, one with the index 100.
func newVeth() *netlink.Veth {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "veth0", 100
	return &netlink.Veth{LinkAttrs: attrs, PeerName: "veth1"}
}

// The links of a device that was deleted are reported as detached, and are removed.
func TestEdgeOfDeviceThatIsGone(t *testing.T) {
	w := newEdgeWorld(t)
	d := w.open()
	w.do(func() error { return errors.Join(netlink.LinkAdd(newVeth()), d.AttachEdgeTC(100)) })
	w.want("100 egress, 100 ingress")
	w.do(func() error { return netlink.LinkDel(newVeth()) })
	w.want("100 egress detached, 100 ingress detached")
	// A device with the same index is another device.
	w.do(func() error { return errors.Join(netlink.LinkAdd(newVeth()), d.AttachEdgeTC(100)) })
	w.want("100 egress, 100 ingress")
	w.do(func() error { return errors.Join(netlink.LinkDel(newVeth()), d.DetachEdge(100)) })
	w.want("")
}

// A device whose XDP hook has another program, native or not, keeps it, and the error names it. The error
// for a device whose driver has no XDP says so.
func TestOtherXDPProgram(t *testing.T) {
	w := newEdgeWorld(t)
	d := w.open()
	other := anyProgram(t, ebpf.XDP)
	for mode, flags := range map[string]int{"native": nl.XDP_FLAGS_DRV_MODE, "generic": nl.XDP_FLAGS_SKB_MODE} {
		w.do(func() error {
			device, err := netlink.LinkByIndex(w.device)
			must(t, err)
			must(t, netlink.LinkSetXdpFdWithFlags(device, other.FD(), flags))
			defer netlink.LinkSetXdpFdWithFlags(device, -1, flags)
			var refused *xdpdispatch.OtherXDPError
			if err := attachXDP(d, w.device, XDPNative); !errors.As(err, &refused) || refused.ProgramID != idOf(t, other) {
				t.Errorf("beside another %s program: %v, want its id %d", mode, err, idOf(t, other))
			}
			return nil
		})
	}
	w.do(func() error {
		const loopback = 1
		if err := attachXDP(d, loopback, XDPNative); !errors.Is(err, ebpf.ErrNotSupported) {
			t.Errorf("native XDP at lo: %v, want %v", err, ebpf.ErrNotSupported)
		}
		return attachXDP(d, loopback, XDPGeneric)
	})
	w.want("1 xdp")
}

// When the mode changes between generic and native XDP, the other one is detached first.
func TestXDPModeChanges(t *testing.T) {
	w := newEdgeWorld(t)
	d := w.open()
	for _, mode := range []XDPMode{XDPGeneric, XDPNative, XDPGeneric} {
		w.do(func() error { return attachXDP(d, w.device, mode) })
		want := map[XDPMode]uint32{XDPNative: nl.XDP_ATTACHED_DRV, XDPGeneric: nl.XDP_ATTACHED_SKB}[mode]
		w.do(func() error {
			if xdp := xdpdispatch.Attached(w.device); xdp == nil || xdp.AttachMode != want {
				t.Errorf("asked for %s XDP: %+v", mode, xdp)
			}
			if got := XDPModeOf(w.device); got != mode {
				t.Errorf("XDP at the device is said to be %s, want %s", got, mode)
			}
			return nil
		})
	}
}

// attachXDP attaches the edge to a device without another XDP program.
func attachXDP(d EdgeKernel, device int, mode XDPMode) error {
	_, err := d.AttachEdgeXDP(device, mode)
	return err
}

// Flows survive a change of --max-flows, and counters have the names of enum edge_reason.
func TestEdgeTablesAreResized(t *testing.T) {
	w := newEdgeWorld(t)
	w.options.Limits.Flows = 1024
	d := w.open()
	key := Tuple{Protocol: 6, SourcePort: 1}
	track := ConntrackEntry{Xlate: Tuple{Protocol: 6, SourcePort: 2}, Packets: 3}
	track.Tag = TupleHash(&key)
	table := NewConntrackSets(d.ConntrackMaps(), EdgeTCMapConntrack)
	sets, err := table.Open()
	must(t, err)
	if !sets.Insert(&EdgeTCCtSlot{Key: key, Ct: track}, settable.Eviction{}) {
		t.Fatal("an empty table has no room")
	}
	must(t, sets.Close())
	w.do(d.Attach)
	d.Close()
	w.options.Limits.Flows = 4096
	d = w.open()
	w.do(d.Attach)
	pinned := map[string]*ebpf.Map{}
	for _, name := range ConntrackTableNames() {
		m, err := ebpf.LoadPinnedMap(TablePath(w.options.BPFFS, name), nil)
		must(t, err)
		defer m.Close()
		pinned[name] = m
	}
	assured, unreplied := NewConntrackSets(pinned, EdgeTCMapConntrack), NewConntrackSets(pinned, EdgeTCMapUnreplied)
	found, err := assured.Get(key)
	if err != nil || found == nil || found.Ct != track {
		t.Errorf("the flow is %+v, %v, want %+v", found, err, track)
	}
	if assured.Max() < 4096 || unreplied.Max() < minHalfOpen {
		t.Errorf("room for %d and %d entries, want 4096 and %d", assured.Max(), unreplied.Max(), minHalfOpen)
	}
	counters, err := ReadEdgeCounters(w.options.BPFFS)
	if err != nil || len(counters) != int(EdgeTCEdgeReasonEDGE_REASONS) {
		t.Errorf("counters %v, %v", slices.Sorted(maps.Keys(counters)), err)
	}
	if _, named := counters["drop_no_port"]; !named {
		t.Errorf("no counter is called drop_no_port: %v", counters)
	}
}

// The last pass of a migration begins when no program runs any more that has seen the phase before: such a program may
// still write to the old tables what the pass would miss. (R37)
func TestLastPassWaitsForOldPhase(t *testing.T) {
	w := newEdgeWorld(t)
	w.options.Limits.Flows = 1024
	d := w.open()
	w.do(func() error { return errors.Join(d.AttachEdgeTC(w.device), d.Attach()) })
	d.Close()
	w.options.Limits.Flows = 4096
	var waited []EdgeTCMigrationPhase // the phase at each wait since the first pass
	passes, known := 0, 0
	table := Declared(edgeTables, EdgeTCMapConntrack)
	follow := table.Follow // of the registry, which all tests share
	t.Cleanup(func() { table.Follow = follow })
	table.Follow = func(f Following) error {
		passes++
		wait := d.Tables.WaitForReaders
		switch f.Pass {
		case FirstPass:
			d.Tables.WaitForReaders = func() error {
				var phase EdgeTCMigrationPhase
				err := d.Map(EdgeTCMapMigration).Lookup(uint32(0), &phase)
				waited = append(waited, phase)
				return errors.Join(err, wait())
			}
		case LastPass:
			known = len(knownPredecessors(t, d))
			if !slices.Contains(waited, EdgeTCMigrationPhaseMIGRATION_DRAIN) {
				t.Errorf("the last pass begins after waits in the phases %v, want one in phase %d", waited, EdgeTCMigrationPhaseMIGRATION_DRAIN)
			}
		}
		return follow(f)
	}
	d = w.open()
	w.do(d.Attach)
	if passes != 3 {
		t.Errorf("conntrack was copied in %d passes, want 3", passes)
	}
	if left := knownPredecessors(t, d); known == 0 || len(left) > 0 {
		t.Errorf("%d programs of the predecessor were known during the migration, and after it those at %v", known, left)
	}
}

// knownPredecessors returns the hooks at which packets are passed to a program of the predecessor.
func knownPredecessors(t *testing.T, d EdgeKernel) (hooks []uint32) {
	t.Helper()
	for _, hook := range migrationHooks {
		var id uint32
		switch err := d.Map(EdgeTCMapPredecessors).Lookup(hook, &id); {
		case err == nil:
			hooks = append(hooks, hook)
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			t.Fatal(err)
		}
	}
	return hooks
}

// With programs of a version that has fewer reasons, the commands of this one report that, a dry run works,
// and the next agent restarts the counters.
func TestCountersOfAnotherVersion(t *testing.T) {
	w := newEdgeWorld(t)
	d := w.open()
	w.do(func() error { return errors.Join(d.AttachEdgeTC(w.device), d.Attach()) })
	d.Close()
	path := TablePath(w.options.BPFFS, EdgeTCMapEdgeCounts)
	must(t, os.Remove(path))
	pinMap(t, path, 8)
	if c, err := ReadEdgeCounters(w.options.BPFFS); !errors.Is(err, ErrOtherCounters) {
		t.Errorf("counters %v, %v, want %v", c, err, ErrOtherCounters)
	}
	events, done, err := OpenEvents(w.options.BPFFS)
	must(t, err)
	defer done()
	if err := events.Read(t.Context(), func() {}, func(*EdgeEvent) {}, func(uint64) {}); !errors.Is(err, ErrOtherCounters) {
		t.Errorf("events: %v, want %v", err, ErrOtherCounters)
	}
	w.do(func() error {
		dry, err := OpenDryRun(w.options.BPFFS, EdgeIngress)
		if err == nil {
			dry.Close()
		}
		return err
	})
	d = w.open()
	w.do(d.Attach)
	if c, err := ReadEdgeCounters(w.options.BPFFS); err != nil || len(c) == 0 {
		t.Errorf("with another agent: counters %v, %v", c, err)
	}
}
