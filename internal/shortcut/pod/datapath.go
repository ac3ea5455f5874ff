// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/util/kernelclock"
)

// Names of the pod shortcut's structures.
type (
	// Row is a pod of this node.
	Row = bpf.PodPod
	// DeviceRow is a device with the program of the pod shortcut.
	DeviceRow = bpf.PodPodDevice
	// LeaseRow is how long the pod shortcut may be used without another search for packet filters.
	LeaseRow = bpf.PodPodLease
)

// What is behind a DeviceRow.
const (
	// RolePods: pods of this node.
	RolePods = uint8(bpf.PodPodRolePOD_ROLE_PODS)
	// RoleNodes: other nodes and their pods.
	RoleNodes = uint8(bpf.PodPodRolePOD_ROLE_NODES)
)

// hookName is the name of the hook of the pod shortcut at devices.
const hookName = "ingress"

// ComponentName is the name of the pod shortcut. NetkitComponentName and L3ComponentName are those of its parts at
// netkit devices and at devices without MAC addresses.
const (
	ComponentName       = "pod"
	NetkitComponentName = "pod_netkit"
	L3ComponentName     = "pod_l3"
)

// Programs is the pod shortcut. It uses the edge's tables.
func Programs(enabled func() bool) *bpf.Component {
	return &bpf.Component{
		Name: ComponentName, Objects: func(*bpf.Datapath) ([]*ebpf.CollectionSpec, error) { return objects(enabled()) }, Tables: tables, Release: End,
		DeviceHooks: []bpf.DeviceHook{{Name: hookName, Program: bpf.PodProgBeelinePod, Attach: ebpf.AttachTCXIngress}},
	}
}

// NetkitPrograms is the pod shortcut where a pod sends by a netkit device. It is enabled with the pod shortcut if the
// kernel has netkit (Linux 6.7), and uses its tables.
func NetkitPrograms() *bpf.Component {
	return &bpf.Component{
		Name: NetkitComponentName, Objects: netkitObjects, LoadLate: true,
		DeviceHooks: []bpf.DeviceHook{{Name: "peer", Program: bpf.PodNetkitProgBeelinePodNetkit, Attach: ebpf.AttachNetkitPeer}},
	}
}

// L3Programs is the pod shortcut at devices that lead to other nodes and have no MAC addresses. It is enabled with the
// pod shortcut, and uses its tables.
func L3Programs() *bpf.Component {
	return &bpf.Component{
		Name: L3ComponentName, Objects: l3Objects, LoadLate: true,
		DeviceHooks: []bpf.DeviceHook{{Name: hookName, Program: bpf.PodL3ProgBeelinePodL3, Attach: ebpf.AttachTCXIngress}},
	}
}

// Sizes of the pod shortcut's tables. A node has some hundred pods.
const podRows = 16384

// flowLimit is how many flows are remembered with their opener, and as many that are not established: 130 bytes
// each. At 300,000 new flows per second the latter last for 0.2 s, more than a handshake in a cluster takes.
const flowLimit = 65536

// unknownLimit is how many addresses wait for the agent, which looks every second.
const unknownLimit = 1024

var tables = []bpf.Table{
	{Name: bpf.PodMapPods, Kind: bpf.ConfigTable, Fixed: podRows, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodDevices, Kind: bpf.ConfigTable, Fixed: podRows, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodLinks, Kind: bpf.ConfigTable, Fixed: podRows, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodBridges, Kind: bpf.ConfigTable, Fixed: podRows, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodLeases, Kind: bpf.ConfigTable, Copy: bpf.CopyEntries, Init: initLease},
	{Name: bpf.PodMapPodEstablished, Kind: bpf.StateTable, Fixed: flowLimit, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodOpening, Kind: bpf.StateTable, Fixed: flowLimit, Copy: bpf.StartEmpty},
	{Name: bpf.PodMapPodUnknown, Kind: bpf.StateTable, Fixed: unknownLimit, Copy: bpf.StartEmpty},
	{Name: bpf.PodMapPodCounts, Kind: bpf.CounterTable, Copy: bpf.StartEmpty},
	{Name: bpf.PodMapPodFlows, Kind: bpf.ScratchTable},
}

// objects returns the object of the pod shortcut.
func objects(enabled bool) ([]*ebpf.CollectionSpec, error) {
	if !enabled {
		return nil, nil
	}
	if lacks := lacksOfKernel(); lacks != "" {
		return nil, bpf.Unavailable(lacks)
	}
	pod, err := bpf.LoadPod()
	return []*ebpf.CollectionSpec{pod}, err
}

// l3Objects returns the object of L3Programs, and netkitObjects that of NetkitPrograms. That of the pod shortcut comes
// before.
func l3Objects(d *bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
	if !d.Enabled(ComponentName) {
		return nil, nil
	}
	l3, err := bpf.LoadPodL3()
	return []*ebpf.CollectionSpec{l3}, err
}

func netkitObjects(d *bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
	if !d.Enabled(ComponentName) || !haveNetkit() {
		return nil, nil
	}
	netkit, err := bpf.LoadPodNetkit()
	return []*ebpf.CollectionSpec{netkit}, err
}

// haveNetkit reports whether the kernel has netkit devices: it then says of the loopback device that it is none.
func haveNetkit() bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: bpf.LoopbackIndex, Attach: ebpf.AttachNetkitPrimary})
	return errors.Is(err, unix.ENXIO)
}

// lacksOfKernel returns what the kernel lacks for the pod shortcut; empty: nothing.
func lacksOfKernel() string {
	switch {
	case errors.Is(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer), ebpf.ErrNotSupported):
		return "packets between pods take the stack: the kernel lacks bpf_redirect_peer (Linux 5.10)"
	case !bpf.KernelHas(bpf.ConntrackLookup):
		return "packets between pods take the stack: the kernel's BTF lacks bpf_skb_ct_lookup (Linux 5.18, module nf_conntrack), which tells the flows that netfilter may translate: " +
			"load the module nf_conntrack before the agent starts"
	case !bpf.KernelHas(bpf.ConntrackTimeout):
		return "packets between pods take the stack: the kernel's BTF lacks bpf_ct_change_timeout (Linux 6.0), which ends entries of connections that are over"
	}
	return ""
}

// kernel is the datapath with the tables of the pod shortcut.
type kernel struct{ *bpf.Datapath }

func tableOf[K comparable, V any](d kernel, name string) bpf.Hash[K, V] {
	return bpf.NewHash[K, V](bpf.Declared(tables, name), d.Map(name))
}

// Pods returns the table of pods by their address.
func (d kernel) Pods() bpf.Hash[bpf.Address, Row] {
	return tableOf[bpf.Address, Row](d, bpf.PodMapPods)
}

// Devices returns the table of devices by their index.
func (d kernel) Devices() bpf.Hash[uint32, DeviceRow] {
	return tableOf[uint32, DeviceRow](d, bpf.PodMapPodDevices)
}

// Links returns the table of the devices of pods: the value is the key. The kernel deletes the entry of a
// device that is gone.
func (d kernel) Links() bpf.Hash[uint32, uint32] {
	return tableOf[uint32, uint32](d, bpf.PodMapPodLinks)
}

// Unknown returns the table of addresses that send from devices of pods and are not in Pods, with the device.
func (d kernel) Unknown() bpf.Hash[bpf.Address, uint32] {
	return tableOf[bpf.Address, uint32](d, bpf.PodMapPodUnknown)
}

// Bridges returns the table of the bridges above devices of pods, by the index of the device.
func (d kernel) Bridges() bpf.Hash[uint32, uint32] {
	return tableOf[uint32, uint32](d, bpf.PodMapPodBridges)
}

// Leases returns the table whose entry 0 is the lease.
func (d kernel) Leases() bpf.Hash[uint32, LeaseRow] {
	return tableOf[uint32, LeaseRow](d, bpf.PodMapPodLeases)
}

// firstLease is the lease in a new table: after an upgrade from a version without it the shortcut goes on until the
// first search.
const firstLease = 30 // seconds

func initLease(m *ebpf.Map) error {
	var lease LeaseRow
	if err := m.Lookup(uint32(0), &lease); err != nil {
		return fmt.Errorf("read the lease of the pod shortcut: %w", err)
	}
	if lease.Until != 0 {
		return nil
	}
	if err := m.Put(uint32(0), LeaseRow{Until: kernelclock.CoarseSeconds() + firstLease}); err != nil {
		return fmt.Errorf("write the lease of the pod shortcut: %w", err)
	}
	return nil
}

// pathNames are the names of enum pod_path by value, in lower case, such as "path_local" and "stack_service".
var pathNames = bpf.EnumNames(bpf.LoadPod, "pod_path", "POD_", int(bpf.PodPodPathPOD_PATHS))

// ReadCounters sums the packets of the pod shortcut over all CPUs, by the path that they took; nil if there is no
// pod shortcut.
//
// Errors: ErrOtherCounters.
func ReadCounters(bpffs string) (map[string]uint64, error) {
	perCPU, err := bpf.PinnedCounters[bpf.PodPodCounters](bpffs, bpf.PodMapPodCounts, "the counters of the pod shortcut")
	if perCPU == nil || err != nil {
		return nil, err
	}
	names, err := pathNames()
	if err != nil {
		return nil, fmt.Errorf("the names of the pod shortcut's counters: %w", err)
	}
	sum := map[string]uint64{}
	for _, c := range perCPU {
		bpf.AddByName(sum, names, c.Count[:])
	}
	return sum, nil
}
