// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/util/kernelclock"
)

// MeshOptions configure the sidecar shortcut.
type MeshOptions struct {
	// The proxy listens for connections of applications and for those from other hosts.
	OutboundPort, InboundPort uint16
	// DNSPort is where proxies answer DNS; 0: it is left alone.
	DNSPort uint16
	// A process with one of these is the proxy of a pod without a policy.
	ProxyUID, ProxyGID uint32
	// Sockmap lets messages between applications and proxies skip TCP.
	Sockmap bool
}

// MeshComponent is the name of the sidecar shortcut.
const MeshComponent = "mesh"

// MeshDatapath is the programs and tables of the sidecar shortcut. The programs are not at the agent's cgroup but at
// those of pods, and in their network namespaces (AttachMesh, AttachMeshInbound).
type MeshDatapath struct {
	// Options are nil if the shortcut is disabled.
	Options *MeshOptions
	// NoSockmap is why messages between applications and proxies take TCP although the options let them skip it;
	// empty otherwise.
	NoSockmap string

	datapath *Datapath
	maps     func(name string) *ebpf.Map
}

// Component returns what the engine needs of it.
func (m *MeshDatapath) Component() *Component {
	return &Component{
		Name: MeshComponent, Objects: m.objects, Tables: meshTables, Constants: m.constants(),
		Attached: attachedMesh, Replace: func(*Datapath) error { return m.replace() }, Detach: detachMesh,
	}
}

// meshTable returns one of the tables.
func meshTable[K comparable, V any](m *MeshDatapath, name string) Hash[K, V] {
	return NewHash[K, V](meshDeclared(name), m.maps(name))
}

// meshDeclared returns the declaration of a table.
func meshDeclared(name string) *Table {
	return &meshTables[slices.IndexFunc(meshTables, func(t Table) bool { return t.Name == name })]
}

// meshHooks are at the cgroup of each pod, in the order of attachment: what tells the destination comes before what
// redirects.
var meshHooks = []CgroupHook{
	{"getpeername4", MeshProgBeelineMeshGetpeername4, ebpf.AttachCgroupInet4GetPeername, nil},
	{"getpeername6", MeshProgBeelineMeshGetpeername6, ebpf.AttachCgroupInet6GetPeername, nil},
	{"recvmsg4", MeshProgBeelineMeshRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg, nil},
	{"recvmsg6", MeshProgBeelineMeshRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg, nil},
	{"getsockopt", MeshProgBeelineMeshGetsockopt, ebpf.AttachCGroupGetsockopt, nil},
	{"setsockopt", MeshProgBeelineMeshSetsockopt, ebpf.AttachCGroupSetsockopt, nil}, // before sockets join
	{"bind4", MeshProgBeelineMeshBind4, ebpf.AttachCGroupInet4Bind, nil},
	{"bind6", MeshProgBeelineMeshBind6, ebpf.AttachCGroupInet6Bind, nil},
	{"sock_release", MeshProgBeelineMeshRelease, ebpf.AttachCgroupInetSockRelease, nil},
	{"sockops", MeshProgBeelineMeshSockops, ebpf.AttachCGroupSockOps, nil},
	{"sendmsg4", MeshProgBeelineMeshSendmsg4, ebpf.AttachCGroupUDP4Sendmsg, nil},
	{"sendmsg6", MeshProgBeelineMeshSendmsg6, ebpf.AttachCGroupUDP6Sendmsg, nil},
	{"connect4", MeshProgBeelineMeshConnect4, ebpf.AttachCGroupInet4Connect, nil},
	{"connect6", MeshProgBeelineMeshConnect6, ebpf.AttachCGroupInet6Connect, nil},
}

// Sizes of the tables of the sidecar shortcut.
const (
	meshHandshakeLimit = 65536
	meshSocketLimit    = 65536
	meshProgramLimit   = 65536
	// meshPodLimit is the number of pods whose proxies have places for listeners.
	meshPodLimit         = 2048
	meshRuleLimit        = 65536
	meshNodeAddressLimit = 4096
	meshNameServerLimit  = 8 * meshPodLimit
	meshDeviceLimit      = 8 * meshPodLimit
	meshRouteLimit       = 65536
	meshProxyLimit       = 8192
	meshLoopLimit        = 4096
)

var meshTables = []Table{
	{Name: MeshMapMeshOrigins, Kind: StateTable},
	{Name: MeshMapMeshSocketStates, Kind: StateTable},
	// An entry lasts for a handshake. The size is fixed, so none is lost by a copy.
	{Name: MeshMapMeshHandshakes, Kind: StateTable, Fixed: meshHandshakeLimit, Copy: StartEmpty},
	// Sockets cannot be copied: AttachMeshInbound finds the listeners again.
	{Name: MeshMapMeshListeners, Kind: StateTable, Fixed: 2 * meshPodLimit * uint32(MeshListeners), Copy: StartEmpty},
	// Sockets join when they are established. Those in a table of another layout take TCP from now on.
	{Name: MeshMapMeshSockets, Kind: StateTable, Fixed: meshSocketLimit, Copy: StartEmpty},
	{Name: MeshMapMeshMembers, Kind: StateTable, Fixed: meshSocketLimit, Copy: StartEmpty},
	{Name: MeshMapMeshReaders, Kind: StateTable, Fixed: meshSocketLimit, Copy: StartEmpty},
	{Name: MeshMapMeshPodPrograms, Kind: StateTable, Fixed: meshProgramLimit, Copy: StartEmpty},
	{Name: MeshMapMeshAcceptors, Kind: StateTable, Fixed: meshProgramLimit, Copy: StartEmpty},
	{Name: MeshMapMeshPods, Kind: ConfigTable, Fixed: 2 * meshPodLimit, Copy: CopyEntries, Remedy: "select fewer pods with --mesh-cgroups and --mesh-pods"},
	{Name: MeshMapMeshPorts, Kind: ConfigTable, Fixed: meshRuleLimit, Copy: CopyEntries, Remedy: "exclude and include fewer ports of pods"},
	{Name: MeshMapMeshNetworks, Kind: ConfigTable, Fixed: meshRuleLimit, Copy: CopyEntries, Remedy: "exclude and include fewer and larger networks"},
	{Name: MeshMapMeshDevices, Kind: ConfigTable, Fixed: meshDeviceLimit, Copy: CopyEntries, Remedy: "exclude fewer devices of pods"},
	{Name: MeshMapMeshRoutes, Kind: ConfigTable, Fixed: meshRouteLimit, Copy: CopyEntries, Remedy: "exclude devices of fewer pods, or of pods with fewer routes"},
	{Name: MeshMapMeshProxyCgroups, Kind: ConfigTable, Fixed: meshPodLimit, Copy: CopyEntries, Remedy: "select fewer pods with --mesh-pods"},
	{Name: MeshMapMeshNameServers, Kind: ConfigTable, Fixed: meshNameServerLimit, Copy: CopyEntries, Remedy: "select fewer pods whose proxies answer DNS"},
	// Processes act again, and a proxy that is not known is noticed again.
	{Name: MeshMapMeshProxies, Kind: StateTable, Fixed: meshProxyLimit, Copy: StartEmpty},
	{Name: MeshMapMeshLoops, Kind: StateTable, Fixed: meshLoopLimit, Copy: StartEmpty},
	{Name: MeshMapMeshNodeAddresses, Kind: ConfigTable, Fixed: meshNodeAddressLimit, Copy: CopyEntries, Remedy: "remove addresses of the node's devices"},
	{Name: MeshMapMeshCounts, Kind: CounterTable, Copy: StartEmpty},
}

func (m *MeshDatapath) constants() map[string]ConstantValue {
	value := func(of func(*MeshOptions) any) ConstantValue {
		return func(*Datapath) (any, error) { return of(m.Options), nil }
	}
	return map[string]ConstantValue{
		MeshVarMeshOutboundPort: value(func(o *MeshOptions) any { return o.OutboundPort }),
		MeshVarMeshInboundPort:  value(func(o *MeshOptions) any { return o.InboundPort }),
		MeshVarMeshDnsPort:      value(func(o *MeshOptions) any { return o.DNSPort }),
		MeshVarMeshProxyUid:     value(func(o *MeshOptions) any { return o.ProxyUID }),
		MeshVarMeshProxyGid:     value(func(o *MeshOptions) any { return o.ProxyGID }),
		MeshVarMeshSockmap: value(func(o *MeshOptions) any {
			if o.Sockmap {
				return uint8(1)
			}
			return uint8(0)
		}),
		MeshInboundVarMeshNetns: ObjectValue, // loadMeshAt sets it, also that of MeshReroute
	}
}

// objects returns the object for the cgroups of pods. That for their namespaces is loaded for each of these. NoSockmap
// has the reason if the options let messages skip TCP and the kernel cannot: everything else works.
func (m *MeshDatapath) objects(d *Datapath) ([]*ebpf.CollectionSpec, error) {
	if m.Options == nil {
		return nil, nil
	}
	if m.Options.Sockmap {
		m.NoSockmap = lacksForMessages()
		m.Options.Sockmap = m.NoSockmap == ""
	}
	m.datapath, m.maps = d, d.Map
	mesh, err := LoadMesh()
	if err == nil && !m.Options.Sockmap {
		delete(mesh.Programs, MeshProgBeelineMeshMessage)
		delete(mesh.Programs, MeshProgBeelineMeshReceive)
		delete(mesh.Programs, MeshProgBeelineMeshRead)
		delete(mesh.Programs, MeshProgBeelineMeshUnread)
	}
	return []*ebpf.CollectionSpec{mesh}, err
}

// MeshListeners is the number of listeners of a proxy that the tables hold.
const MeshListeners = int(MeshMeshSizeMESH_LISTENERS)

// meshHandshakeAge is longer than a handshake lasts: the kernel gives up after about two minutes (tcp_syn_retries).
const meshHandshakeAge = 10 * time.Minute

// ForgetMeshHandshakes deletes entries of handshakes whose end no program has seen, because their cgroup was removed.
func (m *MeshDatapath) ForgetMeshHandshakes() error {
	table := meshTable[MeshMeshTuple, MeshMeshHandshake](m, MeshMapMeshHandshakes)
	all, err := table.All()
	if err != nil {
		return err
	}
	now := kernelclock.Now()
	for tuple, h := range all {
		if h.Since+uint64(meshHandshakeAge) < now {
			err = errors.Join(err, table.Delete(tuple))
		}
	}
	return err
}

// MeshCounters count since the tables were made.
type MeshCounters = MeshMeshCounters

// ReadMeshCounters sums the counters of the sidecar shortcut over all CPUs; nil if there is none.
//
// Errors: ErrOtherCounters.
func ReadMeshCounters(bpffs string) (*MeshCounters, error) {
	m, err := ebpf.LoadPinnedMap(TablePath(bpffs, MeshMapMeshCounts), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the counters of the sidecar shortcut under %s: %w", bpffs, err)
	}
	defer m.Close()
	if uintptr(m.ValueSize()) != unsafe.Sizeof(MeshCounters{}) {
		return nil, ErrOtherCounters
	}
	var perCPU []MeshCounters
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read the counters of the sidecar shortcut: %w", err)
	}
	return Sum(perCPU), nil
}
