// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
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

	datapath *bpf.Datapath
	maps     func(name string) *ebpf.Map
}

// Component returns what the engine needs of it.
func (m *MeshDatapath) Component() *bpf.Component {
	return &bpf.Component{
		Name: MeshComponent, Objects: m.objects, Tables: meshTables, Constants: m.constants(),
		Attached: attachedMesh, Replace: func(*bpf.Datapath) error { return m.replace() }, Detach: detachMesh,
	}
}

// meshTable returns one of the tables.
func meshTable[K comparable, V any](m *MeshDatapath, name string) bpf.Hash[K, V] {
	return bpf.NewHash[K, V](meshDeclared(name), m.maps(name))
}

// meshDeclared returns the declaration of a table.
func meshDeclared(name string) *bpf.Table {
	return &meshTables[slices.IndexFunc(meshTables, func(t bpf.Table) bool { return t.Name == name })]
}

// meshHooks are at the cgroup of each pod, in the order of attachment: what tells the destination comes before what
// redirects.
var meshHooks = []bpf.CgroupHook{
	{Name: "getpeername4", Program: bpf.MeshProgBeelineMeshGetpeername4, Attach: ebpf.AttachCgroupInet4GetPeername},
	{Name: "getpeername6", Program: bpf.MeshProgBeelineMeshGetpeername6, Attach: ebpf.AttachCgroupInet6GetPeername},
	{Name: "recvmsg4", Program: bpf.MeshProgBeelineMeshRecvmsg4, Attach: ebpf.AttachCGroupUDP4Recvmsg},
	{Name: "recvmsg6", Program: bpf.MeshProgBeelineMeshRecvmsg6, Attach: ebpf.AttachCGroupUDP6Recvmsg},
	{Name: "getsockopt", Program: bpf.MeshProgBeelineMeshGetsockopt, Attach: ebpf.AttachCGroupGetsockopt},
	{Name: "setsockopt", Program: bpf.MeshProgBeelineMeshSetsockopt, Attach: ebpf.AttachCGroupSetsockopt}, // before sockets join
	{Name: "bind4", Program: bpf.MeshProgBeelineMeshBind4, Attach: ebpf.AttachCGroupInet4Bind},
	{Name: "bind6", Program: bpf.MeshProgBeelineMeshBind6, Attach: ebpf.AttachCGroupInet6Bind},
	{Name: "sock_release", Program: bpf.MeshProgBeelineMeshRelease, Attach: ebpf.AttachCgroupInetSockRelease},
	{Name: "sockops", Program: bpf.MeshProgBeelineMeshSockops, Attach: ebpf.AttachCGroupSockOps},
	{Name: "sendmsg4", Program: bpf.MeshProgBeelineMeshSendmsg4, Attach: ebpf.AttachCGroupUDP4Sendmsg},
	{Name: "sendmsg6", Program: bpf.MeshProgBeelineMeshSendmsg6, Attach: ebpf.AttachCGroupUDP6Sendmsg},
	{Name: "connect4", Program: bpf.MeshProgBeelineMeshConnect4, Attach: ebpf.AttachCGroupInet4Connect},
	{Name: "connect6", Program: bpf.MeshProgBeelineMeshConnect6, Attach: ebpf.AttachCGroupInet6Connect},
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

var meshTables = []bpf.Table{
	{Name: bpf.MeshMapMeshOrigins, Kind: bpf.StateTable},
	{Name: bpf.MeshMapMeshSocketStates, Kind: bpf.StateTable},
	// An entry lasts for a handshake. The size is fixed, so none is lost by a copy.
	{Name: bpf.MeshMapMeshHandshakes, Kind: bpf.StateTable, Fixed: meshHandshakeLimit, Copy: bpf.StartEmpty},
	// Sockets cannot be copied: AttachMeshInbound finds the listeners again.
	{Name: bpf.MeshMapMeshListeners, Kind: bpf.StateTable, Fixed: 2 * meshPodLimit * uint32(MeshListeners), Copy: bpf.StartEmpty},
	// Sockets join when they are established. Those in a table of another layout take TCP from now on.
	{Name: bpf.MeshMapMeshSockets, Kind: bpf.StateTable, Fixed: meshSocketLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshMembers, Kind: bpf.StateTable, Fixed: meshSocketLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshReaders, Kind: bpf.StateTable, Fixed: meshSocketLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshPodPrograms, Kind: bpf.StateTable, Fixed: meshProgramLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshAcceptors, Kind: bpf.StateTable, Fixed: meshProgramLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshPods, Kind: bpf.ConfigTable, Fixed: 2 * meshPodLimit, Copy: bpf.CopyEntries, Remedy: "select fewer pods with --mesh-cgroups and --mesh-pods"},
	{Name: bpf.MeshMapMeshPorts, Kind: bpf.ConfigTable, Fixed: meshRuleLimit, Copy: bpf.CopyEntries, Remedy: "exclude and include fewer ports of pods"},
	{Name: bpf.MeshMapMeshNetworks, Kind: bpf.ConfigTable, Fixed: meshRuleLimit, Copy: bpf.CopyEntries, Remedy: "exclude and include fewer and larger networks"},
	{Name: bpf.MeshMapMeshDevices, Kind: bpf.ConfigTable, Fixed: meshDeviceLimit, Copy: bpf.CopyEntries, Remedy: "exclude fewer devices of pods"},
	{Name: bpf.MeshMapMeshRoutes, Kind: bpf.ConfigTable, Fixed: meshRouteLimit, Copy: bpf.CopyEntries, Remedy: "exclude devices of fewer pods, or of pods with fewer routes"},
	{Name: bpf.MeshMapMeshProxyCgroups, Kind: bpf.ConfigTable, Fixed: meshPodLimit, Copy: bpf.CopyEntries, Remedy: "select fewer pods with --mesh-pods"},
	{Name: bpf.MeshMapMeshNameServers, Kind: bpf.ConfigTable, Fixed: meshNameServerLimit, Copy: bpf.CopyEntries, Remedy: "select fewer pods whose proxies answer DNS"},
	// Processes act again, and a proxy that is not known is noticed again.
	{Name: bpf.MeshMapMeshProxies, Kind: bpf.StateTable, Fixed: meshProxyLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshLoops, Kind: bpf.StateTable, Fixed: meshLoopLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshNodeAddresses, Kind: bpf.ConfigTable, Fixed: meshNodeAddressLimit, Copy: bpf.CopyEntries, Remedy: "remove addresses of the node's devices"},
	{Name: bpf.MeshMapMeshCounts, Kind: bpf.CounterTable, Copy: bpf.StartEmpty},
}

func (m *MeshDatapath) constants() map[string]bpf.ConstantValue {
	value := func(of func(*MeshOptions) any) bpf.ConstantValue {
		return func(*bpf.Datapath) (any, error) { return of(m.Options), nil }
	}
	return map[string]bpf.ConstantValue{
		bpf.MeshVarMeshOutboundPort: value(func(o *MeshOptions) any { return o.OutboundPort }),
		bpf.MeshVarMeshInboundPort:  value(func(o *MeshOptions) any { return o.InboundPort }),
		bpf.MeshVarMeshDnsPort:      value(func(o *MeshOptions) any { return o.DNSPort }),
		bpf.MeshVarMeshProxyUid:     value(func(o *MeshOptions) any { return o.ProxyUID }),
		bpf.MeshVarMeshProxyGid:     value(func(o *MeshOptions) any { return o.ProxyGID }),
		bpf.MeshVarMeshSockmap: value(func(o *MeshOptions) any {
			if o.Sockmap {
				return uint8(1)
			}
			return uint8(0)
		}),
		bpf.MeshInboundVarMeshNetns: bpf.ObjectValue, // loadMeshAt sets it, also that of MeshReroute
	}
}

// objects returns the object for the cgroups of pods. That for their namespaces is loaded for each of these. NoSockmap
// has the reason if the options let messages skip TCP and the kernel cannot: everything else works.
func (m *MeshDatapath) objects(d *bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
	if m.Options == nil {
		return nil, nil
	}
	if m.Options.Sockmap {
		m.NoSockmap = lacksForMessages()
		m.Options.Sockmap = m.NoSockmap == ""
	}
	m.datapath, m.maps = d, d.Map
	mesh, err := bpf.LoadMesh()
	if err == nil && !m.Options.Sockmap {
		delete(mesh.Programs, bpf.MeshProgBeelineMeshMessage)
		delete(mesh.Programs, bpf.MeshProgBeelineMeshReceive)
		delete(mesh.Programs, bpf.MeshProgBeelineMeshRead)
		delete(mesh.Programs, bpf.MeshProgBeelineMeshUnread)
	}
	return []*ebpf.CollectionSpec{mesh}, err
}

// MeshListeners is the number of listeners of a proxy that the tables hold.
const MeshListeners = int(bpf.MeshMeshSizeMESH_LISTENERS)

// meshHandshakeAge is longer than a handshake lasts: the kernel gives up after about two minutes (tcp_syn_retries).
const meshHandshakeAge = 10 * time.Minute

// ForgetMeshHandshakes deletes entries of handshakes whose end no program has seen, because their cgroup was removed.
func (m *MeshDatapath) ForgetMeshHandshakes() error {
	table := meshTable[bpf.MeshMeshTuple, bpf.MeshMeshHandshake](m, bpf.MeshMapMeshHandshakes)
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
type MeshCounters = bpf.MeshMeshCounters

// ReadMeshCounters sums the counters of the sidecar shortcut over all CPUs; nil if there is none.
//
// Errors: ErrOtherCounters.
func ReadMeshCounters(bpffs string) (*MeshCounters, error) {
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, bpf.MeshMapMeshCounts), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the counters of the sidecar shortcut under %s: %w", bpffs, err)
	}
	defer m.Close()
	if uintptr(m.ValueSize()) != unsafe.Sizeof(MeshCounters{}) {
		return nil, bpf.ErrOtherCounters
	}
	var perCPU []MeshCounters
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read the counters of the sidecar shortcut: %w", err)
	}
	return bpf.Sum(perCPU), nil
}
