// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/node/netdev"
)

// Names of the flow cache's structures.
type (
	OffloadKey       = OffloadOffloadKey
	OffloadFlow      = OffloadOffloadFlow
	OffloadCandidate = OffloadOffloadCandidate
	OffloadControl   = OffloadOffloadControl
)

// States and flags of an OffloadFlow.
const (
	OffloadActive    = uint8(OffloadOffloadStateOFFLOAD_ACTIVE)
	OffloadClosed    = uint8(OffloadOffloadStateOFFLOAD_CLOSED)
	OffloadUntracked = uint8(OffloadOffloadStateOFFLOAD_UNTRACKED)
	OffloadRerouted  = uint8(OffloadOffloadStateOFFLOAD_REROUTED)

	OffloadToTunnel = uint8(OffloadOffloadFlagOFFLOAD_TUNNEL)

	// OffloadExternal is in the table of devices: a tunnel in external mode.
	OffloadExternal = uint32(OffloadOffloadDeviceOFFLOAD_DEVICE_EXTERNAL)
	// OffloadInVRF is the same: a device of a VRF.
	OffloadInVRF = uint32(OffloadOffloadDeviceOFFLOAD_DEVICE_IN_VRF)
	// OffloadStrict is the same: the effective rp_filter of the device is 1.
	OffloadStrict = uint32(OffloadOffloadDeviceOFFLOAD_DEVICE_STRICT)
)

// OffloadComponent is the name of flow offload.
const OffloadComponent = "offload"

// formerOffload is the name that OffloadComponent had before.
const formerOffload = "gateway"

// offloadFilterPriority: flow offload comes after the edge and the pod shortcut.
const offloadFilterPriority = 192

// Offload is the flow cache.
func Offload(enabled func() bool) *Component {
	return &Component{
		Name: OffloadComponent, Former: formerOffload, Tables: offloadTables, Constants: offloadConstants, DeviceHooks: offloadHooks,
		FilterPriority: offloadFilterPriority, Conntrack: func(*Datapath) bool { return enabled() },
		Objects: func(*Datapath) ([]*ebpf.CollectionSpec, error) {
			if !enabled() {
				return nil, nil
			}
			return offloadObjects()
		},
	}
}

var offloadHooks = []DeviceHook{
	{Name: "ingress", Program: OffloadProgBeelineOffload, Attach: ebpf.AttachTCXIngress, ProgramAt: offloadIngressAt},
	{Name: "egress", Program: OffloadProgBeelineOffloadLearn, Attach: ebpf.AttachTCXEgress, ProgramAt: offloadEgressAt},
}

// offloadIngressAt returns the program for the ingress of a device.
func offloadIngressAt(device int) string {
	switch l3, external := netdev.IsL3(device), netdev.IsExternalTunnel(device); {
	case l3 && external:
		return OffloadL3ProgBeelineOffloadL3Tunnel
	case l3:
		return OffloadL3ProgBeelineOffloadL3
	case external:
		return OffloadProgBeelineOffloadTunnel
	}
	return ""
}

// offloadEgressAt returns the program for the egress of a device.
func offloadEgressAt(device int) string {
	if netdev.IsL3(device) {
		return OffloadL3ProgBeelineOffloadL3Learn
	}
	return ""
}

var offloadTables = []Table{
	// Flows of an earlier agent are learned anew if the size or layout differs.
	{Name: OffloadMapOffloadFlows, Kind: StateTable, Limit: &limitOffloadFlows, Entries: offloadSets, Copy: StartEmpty},
	{Name: OffloadMapOffloadTags, Kind: StateTable, Limit: &limitOffloadFlows, Entries: offloadSets, Copy: StartEmpty},
	{Name: OffloadMapOffloadControls, Kind: ConfigTable, Copy: CopyArray},
	{Name: OffloadMapOffloadDevices, Kind: ConfigTable, Fixed: offloadDeviceLimit, Copy: CopyEntries},
	{Name: OffloadMapOffloadArrivals, Kind: StateTable, Copy: StartEmpty},
	{Name: OffloadMapOffloadCounts, Kind: ScratchTable},
	{Name: OffloadMapOffloadCandidates, Kind: StateTable, Copy: StartEmpty},
	{Name: OffloadMapOffloadPackets, Kind: CounterTable, Copy: StartEmpty},
}

var offloadConstants = map[string]ConstantValue{
	OffloadVarOffloadSets: EntriesOf(OffloadMapOffloadFlows),
	OffloadVarJiffyNs:     func(*Datapath) (any, error) { return jiffy() },
}

// offloadDeviceLimit is the number of devices that flow offload can have.
const offloadDeviceLimit = 4096

// offloadFill is the share of places, in percent, that Limits.OffloadFlows entries fill: so few sets are full.
const offloadFill = 66

// offloadSets returns the number of sets for a number of entries.
func offloadSets(flows uint32) uint32 {
	return max(1, uint32(uint64(flows)*100/offloadFill/uint64(settable.Places)))
}

// jiffy returns the length of a jiffy in nanoseconds: the resolution of the coarse clocks.
func jiffy() (uint32, error) {
	var t unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		return 0, fmt.Errorf("read the resolution of CLOCK_MONOTONIC_COARSE: %w", err)
	}
	return uint32(t.Nano()), nil
}

// offloadObjects returns the objects of the flow cache.
func offloadObjects() ([]*ebpf.CollectionSpec, error) {
	if lacks := lacksForOffload(); lacks != "" {
		return nil, Unavailable(lacks)
	}
	offload, err := LoadOffload()
	if err != nil {
		return nil, err
	}
	l3, err := LoadOffloadL3()
	return []*ebpf.CollectionSpec{offload, l3}, err
}

// lacksForOffload returns what the kernel lacks for the flow cache; empty: nothing.
func lacksForOffload() string {
	for name, since := range map[string]string{ConntrackLookup: "5.18", ConntrackTimeout: "6.0"} {
		if !KernelHas(name) {
			return fmt.Sprintf("the kernel's BTF lacks %s (Linux %s, module nf_conntrack), which follows the flows of netfilter: load the module nf_conntrack before the agent starts", name, since)
		}
	}
	return ""
}

// offloadPathNames are the names of enum offload_path by value, in lower case, such as "path_cache".
var offloadPathNames = EnumNames(LoadOffload, "offload_path", "OFFLOAD_PATH_", int(OffloadOffloadPathOFFLOAD_PATHS))

// OffloadRefusalNames are the names of enum offload_refusal by value, in lower case, such as "helper".
var OffloadRefusalNames = EnumNames(LoadOffload, "offload_refusal", "OFFLOAD_", int(OffloadOffloadRefusalOFFLOAD_REFUSALS))

// ReadOffloadCounters sums the packets of the offload programs over all CPUs, by what happened to them, and the bytes
// of those that the flow cache has forwarded; nil if there is no flow cache.
//
// Errors: ErrOtherCounters.
func ReadOffloadCounters(bpffs string) (packets map[string]uint64, bytes uint64, err error) {
	m, err := ebpf.LoadPinnedMap(TablePath(bpffs, OffloadMapOffloadPackets), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open the counters of flow offload under %s: %w", bpffs, err)
	}
	defer m.Close()
	names, err := offloadPathNames()
	if err != nil {
		return nil, 0, fmt.Errorf("the names of the offload counters: %w", err)
	}
	if uintptr(m.ValueSize()) != unsafe.Sizeof(OffloadOffloadCounters{}) {
		return nil, 0, ErrOtherCounters
	}
	var perCPU []OffloadOffloadCounters
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		return nil, 0, fmt.Errorf("read the counters of flow offload: %w", err)
	}
	packets = map[string]uint64{}
	for _, c := range perCPU {
		bytes += c.Bytes
		for path, n := range c.Packets {
			packets[names[path]] += n
		}
	}
	return packets, bytes, nil
}

// OffloadTables are the tables of the flow cache.
type OffloadTables struct {
	Flows, Tags, Controls, Candidates *ebpf.Map
	Secret                            settable.Secret
}

// OffloadKernel is the datapath with the tables of the flow cache.
type OffloadKernel struct{ *Datapath }

// OffloadTables returns the tables of the flow cache. It must be enabled.
func (d OffloadKernel) OffloadTables() (*OffloadTables, error) {
	secret, err := settable.ReadSecret(d.Map(SockMapTableSecret))
	if err != nil {
		return nil, err
	}
	return &OffloadTables{
		Flows: d.Map(OffloadMapOffloadFlows), Tags: d.Map(OffloadMapOffloadTags), Controls: d.Map(OffloadMapOffloadControls),
		Candidates: d.Map(OffloadMapOffloadCandidates), Secret: secret,
	}, nil
}

// OffloadDevices returns the table of devices by their index.
func (d OffloadKernel) OffloadDevices() Hash[uint32, uint32] {
	return NewHash[uint32, uint32](Declared(offloadTables, OffloadMapOffloadDevices), d.Map(OffloadMapOffloadDevices))
}

// OpenOffloadTables opens the pinned flow cache of a bpffs directory for reading, whether an agent runs there or not;
// nil if there is none.
func OpenOffloadTables(bpffs string) (*OffloadTables, error) {
	t := &OffloadTables{}
	for name, to := range map[string]**ebpf.Map{OffloadMapOffloadFlows: &t.Flows, OffloadMapOffloadTags: &t.Tags, OffloadMapOffloadControls: &t.Controls} {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			t.Close()
			return nil, nil
		}
		if err != nil {
			t.Close()
			return nil, fmt.Errorf("open table %s under %s: %w", name, bpffs, err)
		}
		*to = m
	}
	if uintptr(t.Flows.ValueSize()) != unsafe.Sizeof(OffloadOffloadSet{}) {
		t.Close()
		return nil, fmt.Errorf("table %s under %s is of another version of Beeline than this command", OffloadMapOffloadFlows, bpffs)
	}
	return t, nil
}

// Close closes the tables of OpenOffloadTables.
func (t *OffloadTables) Close() {
	for _, m := range []*ebpf.Map{t.Flows, t.Tags, t.Controls} {
		m.Close() // nothing is to be done for nil
	}
}
