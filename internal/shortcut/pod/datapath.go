// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	bpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/util/kernelclock"
)

// Names of the pod shortcut's structures.
type (
	// Pod is a pod of this node.
	Pod = bpf.PodPod
	// PodDevice is a device with the program of the pod shortcut.
	PodDevice = bpf.PodPodDevice
	// PodLease is how long the pod shortcut may be used without another search for packet filters.
	PodLease = bpf.PodPodLease
)

// What is behind a PodDevice.
const (
	// RolePods: pods of this node.
	RolePods = uint8(bpf.PodPodRolePOD_ROLE_PODS)
	// RoleNodes: other nodes and their pods.
	RoleNodes = uint8(bpf.PodPodRolePOD_ROLE_NODES)
)

// PodHook is the name of the hook of the pod shortcut at devices.
const PodHook = "ingress"

// PodComponent is the name of the pod shortcut. PodNetkitComponent and PodL3Component are those of its parts at netkit
// devices and at devices without MAC addresses.
const (
	PodComponent       = "pod"
	PodNetkitComponent = "pod_netkit"
	PodL3Component     = "pod_l3"
)

// PodShortcut is the pod shortcut. It uses the edge's tables.
func PodShortcut(enabled func() bool) *bpf.Component {
	return &bpf.Component{
		Name: PodComponent, Objects: func(*bpf.Datapath) ([]*ebpf.CollectionSpec, error) { return podObjects(enabled()) }, Tables: podTables, Release: EndPodShortcut,
		DeviceHooks: []bpf.DeviceHook{{Name: PodHook, Program: bpf.PodProgBeelinePod, Attach: ebpf.AttachTCXIngress}},
	}
}

// PodNetkit is the pod shortcut where a pod sends by a netkit device. It is enabled with the pod shortcut if the kernel
// has netkit (Linux 6.7), and uses its tables.
func PodNetkit() *bpf.Component {
	return &bpf.Component{
		Name: PodNetkitComponent, Objects: podNetkitObjects, LoadLate: true,
		DeviceHooks: []bpf.DeviceHook{{Name: "peer", Program: bpf.PodNetkitProgBeelinePodNetkit, Attach: ebpf.AttachNetkitPeer}},
	}
}

// PodL3 is the pod shortcut at devices that lead to other nodes and have no MAC addresses. It is enabled with the pod
// shortcut, and uses its tables.
func PodL3() *bpf.Component {
	return &bpf.Component{
		Name: PodL3Component, Objects: podL3Objects, LoadLate: true,
		DeviceHooks: []bpf.DeviceHook{{Name: PodHook, Program: bpf.PodL3ProgBeelinePodL3, Attach: ebpf.AttachTCXIngress}},
	}
}

// Sizes of the pod shortcut's tables. A node has some hundred pods.
const podLimit = 16384

// PodFlowLimit is how many flows are remembered with their opener, and as many that are not established: 130 bytes
// each. At 300,000 new flows per second the latter last for 0.2 s, more than a handshake in a cluster takes.
const PodFlowLimit = 65536

// podUnknownLimit is how many addresses wait for the agent, which looks every second.
const podUnknownLimit = 1024

var podTables = []bpf.Table{
	{Name: bpf.PodMapPods, Kind: bpf.ConfigTable, Fixed: podLimit, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodDevices, Kind: bpf.ConfigTable, Fixed: podLimit, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodLinks, Kind: bpf.ConfigTable, Fixed: podLimit, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodBridges, Kind: bpf.ConfigTable, Fixed: podLimit, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodLeases, Kind: bpf.ConfigTable, Copy: bpf.CopyEntries, Init: initPodLease},
	{Name: bpf.PodMapPodEstablished, Kind: bpf.StateTable, Fixed: PodFlowLimit, Copy: bpf.CopyEntries},
	{Name: bpf.PodMapPodOpening, Kind: bpf.StateTable, Fixed: PodFlowLimit, Copy: bpf.StartEmpty},
	{Name: bpf.PodMapPodUnknown, Kind: bpf.StateTable, Fixed: podUnknownLimit, Copy: bpf.StartEmpty},
	{Name: bpf.PodMapPodCounts, Kind: bpf.CounterTable, Copy: bpf.StartEmpty},
	{Name: bpf.PodMapPodFlows, Kind: bpf.ScratchTable},
}

// podObjects returns the object of the pod shortcut.
func podObjects(enabled bool) ([]*ebpf.CollectionSpec, error) {
	if !enabled {
		return nil, nil
	}
	if lacks := lacksForPods(); lacks != "" {
		return nil, bpf.Unavailable(lacks)
	}
	pod, err := bpf.LoadPod()
	return []*ebpf.CollectionSpec{pod}, err
}

// podL3Objects returns the object of PodL3, and podNetkitObjects that of PodNetkit. That of the pod shortcut comes
// before.
func podL3Objects(d *bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
	if !d.Enabled(PodComponent) {
		return nil, nil
	}
	l3, err := bpf.LoadPodL3()
	return []*ebpf.CollectionSpec{l3}, err
}

func podNetkitObjects(d *bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
	if !d.Enabled(PodComponent) || !haveNetkit() {
		return nil, nil
	}
	netkit, err := bpf.LoadPodNetkit()
	return []*ebpf.CollectionSpec{netkit}, err
}

// haveNetkit reports whether the kernel has netkit devices: it then says of the loopback device that it is none.
func haveNetkit() bool {
	_, err := bpflink.QueryPrograms(bpflink.QueryOptions{Target: bpf.LoopbackIndex, Attach: ebpf.AttachNetkitPrimary})
	return errors.Is(err, unix.ENXIO)
}

// lacksForPods returns what the kernel lacks for the pod shortcut; empty: nothing.
func lacksForPods() string {
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

// PodKernel is the datapath with the tables of the pod shortcut.
type PodKernel struct{ *bpf.Datapath }

func podTable[K comparable, V any](d PodKernel, name string) bpf.Hash[K, V] {
	return bpf.NewHash[K, V](bpf.Declared(podTables, name), d.Map(name))
}

// Pods returns the table of pods by their address.
func (d PodKernel) Pods() bpf.Hash[bpf.Address, Pod] {
	return podTable[bpf.Address, Pod](d, bpf.PodMapPods)
}

// PodDevices returns the table of devices by their index.
func (d PodKernel) PodDevices() bpf.Hash[uint32, PodDevice] {
	return podTable[uint32, PodDevice](d, bpf.PodMapPodDevices)
}

// PodLinks returns the table of the devices of pods: the value is the key. The kernel deletes the entry of a
// device that is gone.
func (d PodKernel) PodLinks() bpf.Hash[uint32, uint32] {
	return podTable[uint32, uint32](d, bpf.PodMapPodLinks)
}

// UnknownPods returns the table of addresses that send from devices of pods and are not in Pods, with the device.
func (d PodKernel) UnknownPods() bpf.Hash[bpf.Address, uint32] {
	return podTable[bpf.Address, uint32](d, bpf.PodMapPodUnknown)
}

// PodBridges returns the table of the bridges above devices of pods, by the index of the device.
func (d PodKernel) PodBridges() bpf.Hash[uint32, uint32] {
	return podTable[uint32, uint32](d, bpf.PodMapPodBridges)
}

// PodLeases returns the table whose entry 0 is the lease.
func (d PodKernel) PodLeases() bpf.Hash[uint32, PodLease] {
	return podTable[uint32, PodLease](d, bpf.PodMapPodLeases)
}

// firstPodLease is the lease in a new table: after an upgrade from a version without it the shortcut goes on until the
// first search.
const firstPodLease = 30 // seconds

func initPodLease(m *ebpf.Map) error {
	var lease PodLease
	if err := m.Lookup(uint32(0), &lease); err != nil {
		return fmt.Errorf("read the lease of the pod shortcut: %w", err)
	}
	if lease.Until != 0 {
		return nil
	}
	if err := m.Put(uint32(0), PodLease{Until: kernelclock.CoarseSeconds() + firstPodLease}); err != nil {
		return fmt.Errorf("write the lease of the pod shortcut: %w", err)
	}
	return nil
}

// podPathNames are the names of enum pod_path by value, in lower case, such as "path_local" and "stack_service".
var podPathNames = bpf.EnumNames(bpf.LoadPod, "pod_path", "POD_", int(bpf.PodPodPathPOD_PATHS))

// ReadPodCounters sums the packets of the pod shortcut over all CPUs, by the path that they took; nil if there is no
// pod shortcut.
//
// Errors: ErrOtherCounters.
func ReadPodCounters(bpffs string) (map[string]uint64, error) {
	perCPU, err := bpf.PinnedCounters[bpf.PodPodCounters](bpffs, bpf.PodMapPodCounts, "the counters of the pod shortcut")
	if perCPU == nil || err != nil {
		return nil, err
	}
	names, err := podPathNames()
	if err != nil {
		return nil, fmt.Errorf("the names of the pod shortcut's counters: %w", err)
	}
	sum := map[string]uint64{}
	for _, c := range perCPU {
		bpf.AddByName(sum, names, c.Count[:])
	}
	return sum, nil
}
