// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/netdev"
	"beeline.io/beeline/internal/settable"
)

// GatewayOptions configure the gateway's flow cache.
type GatewayOptions struct{}

// Names of the flow cache's structures.
type (
	GatewayKey       = GatewayGatewayKey
	GatewayFlow      = GatewayGatewayFlow
	GatewayCandidate = GatewayGatewayCandidate
	GatewayControl   = GatewayGatewayControl
)

// From returns the source of a tuple.
func (t *GatewayTuple) From() netip.AddrPort { return addrPort(t.Source.Bytes, t.SourcePort) }

// To returns the destination of a tuple.
func (t *GatewayTuple) To() netip.AddrPort { return addrPort(t.Destination.Bytes, t.DestinationPort) }

// gatewayKeyMix is GATEWAY_KEY_MIX of bpf/gateway/cache.h.
const gatewayKeyMix = uint64(0xd6e8feb86659fd93)

// Sum is gateway_sum of bpf/gateway/cache.h: it determines the set of the key and its tag.
func (k *GatewayGatewayKey) Sum(secret *settable.Secret) uint64 {
	sum := settable.KeySum(secret, &k.Tuple)
	sum ^= (uint64(k.Tunnel)<<32 | uint64(k.Device)) * gatewayKeyMix
	return sum ^ sum>>29
}

// States and flags of a GatewayFlow.
const (
	GatewayActive    = uint8(GatewayGatewayStateGATEWAY_ACTIVE)
	GatewayClosed    = uint8(GatewayGatewayStateGATEWAY_CLOSED)
	GatewayUntracked = uint8(GatewayGatewayStateGATEWAY_UNTRACKED)
	GatewayRerouted  = uint8(GatewayGatewayStateGATEWAY_REROUTED)

	GatewayToTunnel = uint8(GatewayGatewayFlagGATEWAY_TUNNEL)

	// GatewayExternal is in the table of devices: a tunnel in external mode.
	GatewayExternal = uint32(GatewayGatewayDeviceGATEWAY_DEVICE_EXTERNAL)
	// GatewayInVRF is the same: a device of a VRF.
	GatewayInVRF = uint32(GatewayGatewayDeviceGATEWAY_DEVICE_IN_VRF)
)

// GatewayComponent is the name of the gateway.
const GatewayComponent = "gateway"

// Gateway is the gateway's flow cache, enabled by Options.Gateway.
func Gateway() *Component {
	return &Component{
		Name: GatewayComponent, Objects: (*Datapath).gatewayObjects, Tables: gatewayTables, Constants: gatewayConstants,
		DeviceHooks: []DeviceHook{
			{Name: "ingress", Program: GatewayProgBeelineGateway, Attach: ebpf.AttachTCXIngress, ProgramAt: gatewayIngressAt},
			{Name: "egress", Program: GatewayProgBeelineGatewayLearn, Attach: ebpf.AttachTCXEgress, ProgramAt: gatewayEgressAt},
		},
	}
}

// gatewayIngressAt returns the program for the ingress of a device.
func gatewayIngressAt(device int) string {
	switch l3, external := netdev.IsL3(device), netdev.IsExternalTunnel(device); {
	case l3 && external:
		return GatewayL3ProgBeelineGatewayL3Tunnel
	case l3:
		return GatewayL3ProgBeelineGatewayL3
	case external:
		return GatewayProgBeelineGatewayTunnel
	}
	return ""
}

// gatewayEgressAt returns the program for the egress of a device.
func gatewayEgressAt(device int) string {
	if netdev.IsL3(device) {
		return GatewayL3ProgBeelineGatewayL3Learn
	}
	return ""
}

var gatewayTables = []Table{
	// Flows of an earlier agent are learned anew if the size or layout differs.
	{Name: GatewayMapGatewayFlows, Kind: StateTable, Limit: &limitGatewayFlows, Entries: gatewaySets, Copy: StartEmpty},
	{Name: GatewayMapGatewayTags, Kind: StateTable, Limit: &limitGatewayFlows, Entries: gatewaySets, Copy: StartEmpty},
	{Name: GatewayMapGatewayControls, Kind: ConfigTable, Copy: CopyArray},
	{Name: GatewayMapGatewayDevices, Kind: ConfigTable, Fixed: gatewayDeviceLimit, Copy: CopyEntries},
	{Name: GatewayMapGatewayArrivals, Kind: StateTable, Copy: StartEmpty},
	{Name: GatewayMapGatewayCounts, Kind: ScratchTable},
	{Name: GatewayMapGatewayCandidates, Kind: StateTable, Copy: StartEmpty},
	{Name: GatewayMapGatewayPackets, Kind: CounterTable, Copy: StartEmpty},
}

var gatewayConstants = map[string]ConstantValue{
	GatewayVarGatewaySets: entriesOf(GatewayMapGatewayFlows),
	GatewayVarJiffyNs:     func(*Datapath) (any, error) { return jiffy() },
}

// gatewayDeviceLimit is the number of devices that the gateway can have.
const gatewayDeviceLimit = 4096

// gatewayFill is the share of places, in percent, that Limits.GatewayFlows entries fill: so few sets are full.
const gatewayFill = 66

// gatewaySets returns the number of sets for a number of entries.
func gatewaySets(flows uint32) uint32 {
	return max(1, uint32(uint64(flows)*100/gatewayFill/uint64(settable.Places)))
}

// jiffy returns the length of a jiffy in nanoseconds: the resolution of the coarse clocks.
func jiffy() (uint32, error) {
	var t unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		return 0, fmt.Errorf("read the resolution of CLOCK_MONOTONIC_COARSE: %w", err)
	}
	return uint32(t.Nano()), nil
}

// gatewayObjects returns the object of the flow cache. NoFlowCache has the reason if the options enable it and the
// kernel cannot have it: everything else works.
func (d *Datapath) gatewayObjects() ([]*ebpf.CollectionSpec, error) {
	if d.options.Gateway == nil {
		return nil, nil
	}
	if d.NoFlowCache = lacksForGateway(); d.NoFlowCache != "" {
		d.options.Gateway = nil
		return nil, nil
	}
	gateway, err := LoadGateway()
	if err != nil {
		return nil, err
	}
	l3, err := LoadGatewayL3()
	return []*ebpf.CollectionSpec{gateway, l3}, err
}

// lacksForGateway returns what the kernel lacks for the flow cache; empty: nothing.
func lacksForGateway() string {
	for name, since := range map[string]string{conntrackLookup: "5.18", conntrackTimeout: "6.0"} {
		if !kernelHas()[name] {
			return fmt.Sprintf("the kernel's BTF lacks %s (Linux %s, module nf_conntrack), which follows the flows of netfilter: load the module nf_conntrack before the agent starts", name, since)
		}
	}
	return ""
}

// gatewayPathNames are the names of enum gateway_path by value, in lower case, such as "path_cache".
var gatewayPathNames = enumNames(LoadGateway, "gateway_path", "GATEWAY_PATH_", int(GatewayGatewayPathGATEWAY_PATHS))

// GatewayRefusalNames are the names of enum gateway_refusal by value, in lower case, such as "helper".
var GatewayRefusalNames = enumNames(LoadGateway, "gateway_refusal", "GATEWAY_", int(GatewayGatewayRefusalGATEWAY_REFUSALS))

// ReadGatewayCounters sums the packets of the gateway's programs over all CPUs, by what happened to them, and the bytes
// of those that the flow cache has forwarded; nil if there is no flow cache.
//
// Errors: ErrOtherCounters.
func ReadGatewayCounters(bpffs string) (packets map[string]uint64, bytes uint64, err error) {
	m, err := ebpf.LoadPinnedMap(TablePath(bpffs, GatewayMapGatewayPackets), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open the counters of the gateway under %s: %w", bpffs, err)
	}
	defer m.Close()
	names, err := gatewayPathNames()
	if err != nil {
		return nil, 0, fmt.Errorf("the names of the gateway's counters: %w", err)
	}
	if uintptr(m.ValueSize()) != unsafe.Sizeof(GatewayGatewayCounters{}) {
		return nil, 0, ErrOtherCounters
	}
	var perCPU []GatewayGatewayCounters
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		return nil, 0, fmt.Errorf("read the counters of the gateway: %w", err)
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

// GatewayTables are the tables of the flow cache.
type GatewayTables struct {
	Flows, Tags, Controls, Candidates *ebpf.Map
	Secret                            settable.Secret
}

// GatewayTables returns the tables of the flow cache. It must be enabled.
func (d *Datapath) GatewayTables() (*GatewayTables, error) {
	secret, err := settable.ReadSecret(d.maps[SockMapTableSecret])
	if err != nil {
		return nil, err
	}
	return &GatewayTables{
		Flows: d.maps[GatewayMapGatewayFlows], Tags: d.maps[GatewayMapGatewayTags], Controls: d.maps[GatewayMapGatewayControls],
		Candidates: d.maps[GatewayMapGatewayCandidates], Secret: secret,
	}, nil
}

// GatewayDevices returns the table of devices by their index.
func (d *Datapath) GatewayDevices() Hash[uint32, uint32] {
	return kernelHash[uint32, uint32]{GatewayMapGatewayDevices, d.maps[GatewayMapGatewayDevices]}
}

// GatewayCacheEnabled reports whether the flow cache is loaded.
func (d *Datapath) GatewayCacheEnabled() bool { return d.options.Gateway != nil }

// OpenGatewayTables opens the pinned flow cache of a bpffs directory for reading, whether an agent runs there or not;
// nil if there is none.
func OpenGatewayTables(bpffs string) (*GatewayTables, error) {
	t := &GatewayTables{}
	for name, to := range map[string]**ebpf.Map{GatewayMapGatewayFlows: &t.Flows, GatewayMapGatewayTags: &t.Tags, GatewayMapGatewayControls: &t.Controls} {
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
	if uintptr(t.Flows.ValueSize()) != unsafe.Sizeof(GatewayGatewaySet{}) {
		t.Close()
		return nil, fmt.Errorf("table %s under %s is of another version of Beeline than this command", GatewayMapGatewayFlows, bpffs)
	}
	return t, nil
}

// Close closes the tables of OpenGatewayTables.
func (t *GatewayTables) Close() {
	for _, m := range []*ebpf.Map{t.Flows, t.Tags, t.Controls} {
		m.Close() // nothing is to be done for nil
	}
}
