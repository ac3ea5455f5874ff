// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
)

// SocketStatsOptions configure the statistics of connections at sockets.
type SocketStatsOptions struct {
	// PerBackend counts each backend of each Service, too.
	PerBackend bool
}

// SocketStatsComponent is the name of the statistics of connections at sockets.
const SocketStatsComponent = "socket_stats"

// SocketStats is the statistics of connections at sockets, enabled if there are options.
func SocketStats(options func() *SocketStatsOptions) *Component {
	return &Component{
		Name: SocketStatsComponent, Tables: socketStatsTables, CgroupHooks: socketStatsHooks,
		Objects: func(*Datapath) ([]*ebpf.CollectionSpec, error) { return socketStatsObjects(options()) },
		Constants: map[string]ConstantValue{
			SockStatsVarStatsPerBackend: func(*Datapath) (any, error) { return Flag(options().PerBackend), nil },
		},
	}
}

var socketStatsHooks = []CgroupHook{{"sock_stats", SockStatsProgBeelineSockStats, ebpf.AttachCGroupSockOps, nil}}

// socketStatsObjects returns the object of the statistics. It needs the kernel's BTF.
func socketStatsObjects(options *SocketStatsOptions) ([]*ebpf.CollectionSpec, error) {
	if options == nil {
		return nil, nil
	}
	if !KernelHas(KernelTypes) {
		return nil, Unavailable("connections at sockets are not counted, because this kernel has no BTF (CONFIG_DEBUG_INFO_BTF): " +
			"use another kernel, or --socket-stats=false if that is acceptable")
	}
	stats, err := LoadSockStats()
	return []*ebpf.CollectionSpec{stats}, err
}

var socketStatsTables = []Table{
	// Not counters that may start from zero: connections that were counted here end here.
	{Name: SockStatsMapServiceSockets, Kind: StateTable, Copy: StartEmpty, ByService: true},
	{Name: SockStatsMapBackendSockets, Kind: StateTable, Copy: StartEmpty},
	{Name: SockStatsMapSocketsUncounted, Kind: StateTable, Copy: StartEmpty},
}

// A SocketBackend is a backend of a service ID.
type SocketBackend struct {
	Service uint32
	Address netip.AddrPort
}

// AllConnectionStats are the statistics of all Services and backends with connections.
type AllConnectionStats struct {
	Services map[uint32]ConnectionStats
	// Backends is empty without SocketStatsOptions.PerBackend.
	Backends map[SocketBackend]ConnectionStats
	// Uncounted are the connections for which there was no room.
	Uncounted uint64
}

// ReadSocketStats reads the statistics of connections at sockets; nil if none are kept. It costs a system call for
// about 4096 rows.
func ReadSocketStats(bpffs string) (*AllConnectionStats, error) {
	maps := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range maps {
			m.Close()
		}
	}()
	for _, name := range []string{SockStatsMapServiceSockets, SockStatsMapBackendSockets, SockStatsMapSocketsUncounted} {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) && len(maps) == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open the statistics of sockets under %s: %w", bpffs, err)
		}
		maps[name] = m
	}
	all := &AllConnectionStats{}
	if err := maps[SockStatsMapSocketsUncounted].Lookup(uint32(0), &all.Uncounted); err != nil {
		return nil, fmt.Errorf("read table %s: %w", SockStatsMapSocketsUncounted, err)
	}
	var err error
	if all.Services, err = services(maps[SockStatsMapServiceSockets]).All(); err != nil {
		return nil, err
	}
	backends, err := socketBackends(maps[SockStatsMapBackendSockets]).All()
	if err != nil {
		return nil, err
	}
	all.Backends = make(map[SocketBackend]ConnectionStats, len(backends))
	for key, stats := range backends {
		if all.Services[key.Service].Birth == key.ServiceBirth {
			all.Backends[backendOf(&key)] = stats
		}
	}
	return all, nil
}

func backendOf(k *SockStatsBackendSocketsKey) SocketBackend {
	address := Address{Bytes: k.Address.Bytes}
	return SocketBackend{k.Service, netip.AddrPortFrom(address.Addr(), NetworkOrder(k.Port))}
}

func socketBackends(m *ebpf.Map) Hash[SockStatsBackendSocketsKey, ConnectionStats] {
	return NewHash[SockStatsBackendSocketsKey, ConnectionStats](Declared(socketStatsTables, SockStatsMapBackendSockets), m)
}

func services(m *ebpf.Map) Hash[uint32, ConnectionStats] {
	return NewHash[uint32, ConnectionStats](Declared(socketStatsTables, SockStatsMapServiceSockets), m)
}

// UncountedSockets returns AllConnectionStats.Uncounted.
func UncountedSockets(d *Datapath) (n uint64, err error) {
	err = d.Map(SockStatsMapSocketsUncounted).Lookup(uint32(0), &n)
	return n, err
}

// DeleteSocketBackends deletes the statistics of backends without connections that are gone: `exists` returns false
// for them, or their Service was deleted. A deleted backend that is chosen again starts from zero.
func DeleteSocketBackends(d *Datapath, exists func(netip.AddrPort) bool) error {
	m := d.Map(SockStatsMapBackendSockets)
	if m == nil {
		return nil
	}
	table := socketBackends(m)
	backends, err := table.All()
	if err != nil || len(backends) == 0 {
		return err
	}
	owners, err := services(d.Map(SockStatsMapServiceSockets)).All()
	if err != nil {
		return err
	}
	for key, stats := range backends {
		ownerGone := owners[key.Service].Birth != key.ServiceBirth
		if !ownerGone && (stats.Open()+stats.Connecting() > 0 || exists(backendOf(&key).Address)) {
			continue
		}
		if err := table.Delete(key); err != nil {
			return fmt.Errorf("delete the statistics of backend %v: %w", backendOf(&key).Address, err)
		}
	}
	return nil
}
