// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/node/netdev"
)

type (
	// Key is which packets are of a flow.
	Key = bpf.OffloadOffloadKey
	// Entry is one direction of a flow in the cache.
	Entry = bpf.OffloadOffloadFlow
	// Candidate and Control are as in bpf/offload/types.h.
	Candidate = bpf.OffloadOffloadCandidate
	Control   = bpf.OffloadOffloadControl
)

// States and flags of an Entry; flags of devices.
const (
	stateActive    = uint8(bpf.OffloadOffloadStateOFFLOAD_ACTIVE)
	stateClosed    = uint8(bpf.OffloadOffloadStateOFFLOAD_CLOSED)
	stateUntracked = uint8(bpf.OffloadOffloadStateOFFLOAD_UNTRACKED)
	stateRerouted  = uint8(bpf.OffloadOffloadStateOFFLOAD_REROUTED)

	flagTunnel = uint8(bpf.OffloadOffloadFlagOFFLOAD_TUNNEL)

	// deviceExternal is in the table of devices: a tunnel in external mode.
	deviceExternal = uint32(bpf.OffloadOffloadDeviceOFFLOAD_DEVICE_EXTERNAL)
	// deviceInVRF is the same: a device of a VRF.
	deviceInVRF = uint32(bpf.OffloadOffloadDeviceOFFLOAD_DEVICE_IN_VRF)
	// deviceStrict is the same: the effective rp_filter of the device is 1.
	deviceStrict = uint32(bpf.OffloadOffloadDeviceOFFLOAD_DEVICE_STRICT)
)

// ComponentName is the name of flow offload.
const ComponentName = "offload"

// formerName is the name that ComponentName had before.
const formerName = "gateway"

// filterPriority: flow offload comes after the edge and the pod shortcut.
const filterPriority = 192

// Programs returns the flow cache.
func Programs(enabled func() bool) *bpf.Component {
	return &bpf.Component{
		Name: ComponentName, Former: formerName, Tables: declaredTables, Constants: constants, DeviceHooks: hooks,
		FilterPriority: filterPriority, Conntrack: enabled,
		Objects: func(*bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
			if !enabled() {
				return nil, nil
			}
			return objects()
		},
	}
}

var hooks = []bpf.DeviceHook{
	{Name: "ingress", Program: bpf.OffloadProgBeelineOffload, Attach: ebpf.AttachTCXIngress, ProgramAt: ingressAt},
	{Name: "egress", Program: bpf.OffloadProgBeelineOffloadLearn, Attach: ebpf.AttachTCXEgress, ProgramAt: egressAt},
}

// ingressAt returns the program for the ingress of a device.
func ingressAt(device int) string {
	switch l3, external := netdev.IsL3(device), netdev.IsExternalTunnel(device); {
	case l3 && external:
		return bpf.OffloadL3ProgBeelineOffloadL3Tunnel
	case l3:
		return bpf.OffloadL3ProgBeelineOffloadL3
	case external:
		return bpf.OffloadProgBeelineOffloadTunnel
	}
	return ""
}

// egressAt returns the program for the egress of a device.
func egressAt(device int) string {
	if netdev.IsL3(device) {
		return bpf.OffloadL3ProgBeelineOffloadL3Learn
	}
	return ""
}

var declaredTables = []bpf.Table{
	// Flows of an earlier agent are learned anew if the size or layout differs.
	{Name: bpf.OffloadMapOffloadFlows, Kind: bpf.StateTable, Limit: &bpf.LimitOffloadFlows, Entries: setsFor, Copy: bpf.StartEmpty},
	{Name: bpf.OffloadMapOffloadTags, Kind: bpf.StateTable, Limit: &bpf.LimitOffloadFlows, Entries: setsFor, Copy: bpf.StartEmpty},
	{Name: bpf.OffloadMapOffloadControls, Kind: bpf.ConfigTable, Copy: bpf.CopyArray},
	{Name: bpf.OffloadMapOffloadDevices, Kind: bpf.ConfigTable, Fixed: deviceLimit, Copy: bpf.CopyEntries},
	{Name: bpf.OffloadMapOffloadArrivals, Kind: bpf.StateTable, Copy: bpf.StartEmpty},
	{Name: bpf.OffloadMapOffloadCounts, Kind: bpf.ScratchTable},
	{Name: bpf.OffloadMapOffloadCandidates, Kind: bpf.StateTable, Copy: bpf.StartEmpty},
	{Name: bpf.OffloadMapOffloadPackets, Kind: bpf.CounterTable, Copy: bpf.StartEmpty},
}

var constants = map[string]bpf.ConstantValue{
	bpf.OffloadVarOffloadSets: bpf.EntriesOf(bpf.OffloadMapOffloadFlows),
	bpf.OffloadVarJiffyNs:     func(*bpf.Datapath) (any, error) { return jiffy() },
}

// deviceLimit is the number of devices that flow offload can have.
const deviceLimit = 4096

// fill is the share of places, in percent, that Limits.OffloadFlows entries fill: so few sets are full.
const fill = 66

// setsFor returns the number of sets for a number of entries.
func setsFor(flows uint32) uint32 {
	return max(1, uint32(uint64(flows)*100/fill/uint64(settable.Places)))
}

// jiffy returns the length of a jiffy in nanoseconds: the resolution of the coarse clocks.
func jiffy() (uint32, error) {
	var t unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		return 0, fmt.Errorf("read the resolution of CLOCK_MONOTONIC_COARSE: %w", err)
	}
	return uint32(t.Nano()), nil
}

// objects returns the objects of the flow cache.
func objects() ([]*ebpf.CollectionSpec, error) {
	if lacks := lacks(); lacks != "" {
		return nil, bpf.Unavailable(lacks)
	}
	offload, err := bpf.LoadOffload()
	if err != nil {
		return nil, err
	}
	l3, err := bpf.LoadOffloadL3()
	return []*ebpf.CollectionSpec{offload, l3}, err
}

// lacks returns what the kernel lacks for the flow cache; empty: nothing.
func lacks() string {
	for name, since := range map[string]string{bpf.ConntrackLookup: "5.18", bpf.ConntrackTimeout: "6.0"} {
		if !bpf.KernelHas(name) {
			return fmt.Sprintf("the kernel's BTF lacks %s (Linux %s, module nf_conntrack), which follows the flows of netfilter: load the module nf_conntrack before the agent starts", name, since)
		}
	}
	return ""
}

// pathNames are the names of enum offload_path by value, in lower case, such as "cache".
var pathNames = bpf.EnumNames(bpf.LoadOffload, "offload_path", "OFFLOAD_PATH_", int(bpf.OffloadOffloadPathOFFLOAD_PATHS))

// refusalNames are the names of enum offload_refusal by value, in lower case, such as "helper".
var refusalNames = bpf.EnumNames(bpf.LoadOffload, "offload_refusal", "OFFLOAD_", int(bpf.OffloadOffloadRefusalOFFLOAD_REFUSALS))

// ReadCounters sums the packets of the offload programs over all CPUs, by what happened to them, and the bytes
// of those that the flow cache has forwarded; nil if there is no flow cache.
//
// Errors: ErrOtherCounters.
func ReadCounters(bpffs string) (packets map[string]uint64, bytes uint64, err error) {
	perCPU, err := bpf.PinnedCounters[bpf.OffloadOffloadCounters](bpffs, bpf.OffloadMapOffloadPackets, "the counters of flow offload")
	if perCPU == nil || err != nil {
		return nil, 0, err
	}
	names, err := pathNames()
	if err != nil {
		return nil, 0, fmt.Errorf("the names of the offload counters: %w", err)
	}
	packets = map[string]uint64{}
	for _, c := range perCPU {
		bytes += c.Bytes
		bpf.AddByName(packets, names, c.Packets[:])
	}
	return packets, bytes, nil
}

// Tables are the tables of the flow cache.
type Tables struct {
	Flows, Tags, Controls, Candidates *ebpf.Map
	Secret                            settable.Secret
}

// kernel is the datapath with the tables of the flow cache.
type kernel struct{ *bpf.Datapath }

// Tables returns the tables of the flow cache. It must be enabled.
func (d kernel) Tables() (*Tables, error) {
	secret, err := settable.ReadSecret(d.Map(bpf.SockMapTableSecret))
	if err != nil {
		return nil, err
	}
	return &Tables{
		Flows: d.Map(bpf.OffloadMapOffloadFlows), Tags: d.Map(bpf.OffloadMapOffloadTags), Controls: d.Map(bpf.OffloadMapOffloadControls),
		Candidates: d.Map(bpf.OffloadMapOffloadCandidates), Secret: secret,
	}, nil
}

// DeviceTable returns the table of devices by their index.
func (d kernel) DeviceTable() bpf.Hash[uint32, uint32] {
	return bpf.NewHash[uint32, uint32](bpf.Declared(declaredTables, bpf.OffloadMapOffloadDevices), d.Map(bpf.OffloadMapOffloadDevices))
}

// OpenTables opens the pinned flow cache of a bpffs directory for reading, whether an agent runs there or not;
// nil if there is none.
func OpenTables(bpffs string) (*Tables, error) {
	maps, err := bpf.OpenPinned(bpffs, bpf.OffloadMapOffloadFlows, bpf.OffloadMapOffloadTags, bpf.OffloadMapOffloadControls)
	t := &Tables{Flows: maps[bpf.OffloadMapOffloadFlows], Tags: maps[bpf.OffloadMapOffloadTags], Controls: maps[bpf.OffloadMapOffloadControls]}
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = nil
	case err == nil && uintptr(t.Flows.ValueSize()) != unsafe.Sizeof(bpf.OffloadOffloadSet{}):
		err = fmt.Errorf("table %s under %s is of another version of Beeline than this command", bpf.OffloadMapOffloadFlows, bpffs)
	case err == nil:
		return t, nil
	}
	t.Close()
	return nil, err
}

// Close closes the tables of OpenTables.
func (t *Tables) Close() {
	for _, m := range []*ebpf.Map{t.Flows, t.Tags, t.Controls} {
		m.Close() // nothing is to be done for nil
	}
}
