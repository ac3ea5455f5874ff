// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/util/kernelclock"
)

// Options configure the sidecar shortcut.
type Options struct {
	// The proxy listens for connections of applications and for those from other hosts.
	OutboundPort, InboundPort uint16
	// DNSPort is where proxies answer DNS; 0: it is left alone.
	DNSPort uint16
	// A process with one of these is the proxy of a pod without a policy.
	ProxyUID, ProxyGID uint32
	// Sockmap lets messages between applications and proxies skip TCP.
	Sockmap bool
}

// componentName is the name of the sidecar shortcut.
const componentName = "mesh"

// Datapath is the programs and tables of the sidecar shortcut. The programs are not at the agent's cgroup but at
// those of pods, and in their network namespaces (AttachCgroup, AttachInbound).
type Datapath struct {
	// Options are nil if the shortcut is disabled.
	Options *Options
	// NoSockmap is why messages between applications and proxies take TCP although the options let them skip it;
	// empty otherwise.
	NoSockmap string

	datapath *bpf.Datapath
	maps     func(name string) *ebpf.Map
}

// Component returns what the engine needs of it.
func (m *Datapath) Component() *bpf.Component {
	return &bpf.Component{
		Name: componentName, Objects: m.objects, Tables: tables, Constants: m.constants(),
		Attached: attachedToPods, Replace: func(*bpf.Datapath) error { return m.replace() }, Detach: detachFromPods,
	}
}

// tableOf returns one of the tables.
func tableOf[K comparable, V any](m *Datapath, name string) bpf.Hash[K, V] {
	return bpf.NewHash[K, V](bpf.Declared(tables, name), m.maps(name))
}

// podHooks are at the cgroup of each pod, in the order of attachment: what tells the destination comes before what
// redirects.
var podHooks = []bpf.CgroupHook{
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
	handshakeLimit = 65536
	socketLimit    = 65536
	programLimit   = 65536
	// podLimit is the number of pods whose proxies have places for listeners.
	podLimit         = 2048
	ruleLimit        = 65536
	nodeAddressLimit = 4096
	nameServerLimit  = 8 * podLimit
	deviceLimit      = 8 * podLimit
	routeLimit       = 65536
	proxyLimit       = 8192
	loopLimit        = 4096
)

var tables = []bpf.Table{
	{Name: bpf.MeshMapMeshOrigins, Kind: bpf.StateTable},
	{Name: bpf.MeshMapMeshSocketStates, Kind: bpf.StateTable},
	// An entry lasts for a handshake. The size is fixed, so none is lost by a copy.
	{Name: bpf.MeshMapMeshHandshakes, Kind: bpf.StateTable, Fixed: handshakeLimit, Copy: bpf.StartEmpty},
	// Sockets cannot be copied: AttachInbound finds the listeners again.
	{Name: bpf.MeshMapMeshListeners, Kind: bpf.StateTable, Fixed: 2 * podLimit * uint32(maxListeners), Copy: bpf.StartEmpty},
	// Sockets join when they are established. Those in a table of another layout take TCP from now on.
	{Name: bpf.MeshMapMeshSockets, Kind: bpf.StateTable, Fixed: socketLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshMembers, Kind: bpf.StateTable, Fixed: socketLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshReaders, Kind: bpf.StateTable, Fixed: socketLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshPodPrograms, Kind: bpf.StateTable, Fixed: programLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshAcceptors, Kind: bpf.StateTable, Fixed: programLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshPods, Kind: bpf.ConfigTable, Fixed: 2 * podLimit, Copy: bpf.CopyEntries, Remedy: "select fewer pods with --mesh-cgroups and --mesh-pods"},
	{Name: bpf.MeshMapMeshPorts, Kind: bpf.ConfigTable, Fixed: ruleLimit, Copy: bpf.CopyEntries, Remedy: "exclude and include fewer ports of pods"},
	{Name: bpf.MeshMapMeshNetworks, Kind: bpf.ConfigTable, Fixed: ruleLimit, Copy: bpf.CopyEntries, Remedy: "exclude and include fewer and larger networks"},
	{Name: bpf.MeshMapMeshDevices, Kind: bpf.ConfigTable, Fixed: deviceLimit, Copy: bpf.CopyEntries, Remedy: "exclude fewer devices of pods"},
	{Name: bpf.MeshMapMeshRoutes, Kind: bpf.ConfigTable, Fixed: routeLimit, Copy: bpf.CopyEntries, Remedy: "exclude devices of fewer pods, or of pods with fewer routes"},
	{Name: bpf.MeshMapMeshProxyCgroups, Kind: bpf.ConfigTable, Fixed: podLimit, Copy: bpf.CopyEntries, Remedy: "select fewer pods with --mesh-pods"},
	{Name: bpf.MeshMapMeshNameServers, Kind: bpf.ConfigTable, Fixed: nameServerLimit, Copy: bpf.CopyEntries, Remedy: "select fewer pods whose proxies answer DNS"},
	// Processes act again, and a proxy that is not known is noticed again.
	{Name: bpf.MeshMapMeshProxies, Kind: bpf.StateTable, Fixed: proxyLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshLoops, Kind: bpf.StateTable, Fixed: loopLimit, Copy: bpf.StartEmpty},
	{Name: bpf.MeshMapMeshNodeAddresses, Kind: bpf.ConfigTable, Fixed: nodeAddressLimit, Copy: bpf.CopyEntries, Remedy: "remove addresses of the node's devices"},
	{Name: bpf.MeshMapMeshCounts, Kind: bpf.CounterTable, Copy: bpf.StartEmpty},
}

func (m *Datapath) constants() map[string]bpf.ConstantValue {
	value := func(of func(*Options) any) bpf.ConstantValue {
		return func(*bpf.Datapath) (any, error) { return of(m.Options), nil }
	}
	return map[string]bpf.ConstantValue{
		bpf.MeshVarMeshOutboundPort: value(func(o *Options) any { return o.OutboundPort }),
		bpf.MeshVarMeshInboundPort:  value(func(o *Options) any { return o.InboundPort }),
		bpf.MeshVarMeshDnsPort:      value(func(o *Options) any { return o.DNSPort }),
		bpf.MeshVarMeshProxyUid:     value(func(o *Options) any { return o.ProxyUID }),
		bpf.MeshVarMeshProxyGid:     value(func(o *Options) any { return o.ProxyGID }),
		bpf.MeshVarMeshSockmap: value(func(o *Options) any {
			if o.Sockmap {
				return uint8(1)
			}
			return uint8(0)
		}),
		bpf.MeshInboundVarMeshNetns: bpf.ObjectValue, // loadAt sets it, also that of MeshReroute
	}
}

// objects returns the object for the cgroups of pods. That for their namespaces is loaded for each of these. NoSockmap
// has the reason if the options let messages skip TCP and the kernel cannot: everything else works.
func (m *Datapath) objects(d *bpf.Datapath) ([]*ebpf.CollectionSpec, error) {
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

// maxListeners is the number of listeners of a proxy that the tables hold.
const maxListeners = int(bpf.MeshMeshSizeMESH_LISTENERS)

// handshakeAge is longer than a handshake lasts: the kernel gives up after about two minutes (tcp_syn_retries).
const handshakeAge = 10 * time.Minute

// ForgetHandshakes deletes entries of handshakes whose end no program has seen, because their cgroup was removed.
func (m *Datapath) ForgetHandshakes() error {
	table := tableOf[bpf.MeshMeshTuple, bpf.MeshMeshHandshake](m, bpf.MeshMapMeshHandshakes)
	all, err := table.All()
	if err != nil {
		return err
	}
	now := kernelclock.Now()
	for tuple, h := range all {
		if h.Since+uint64(handshakeAge) < now {
			err = errors.Join(err, table.Delete(tuple))
		}
	}
	return err
}

// Counters count since the tables were made.
type Counters = bpf.MeshMeshCounters

// ReadCounters sums the counters of the sidecar shortcut over all CPUs; nil if there is none.
//
// Errors: ErrOtherCounters.
func ReadCounters(bpffs string) (*Counters, error) {
	perCPU, err := bpf.PinnedCounters[Counters](bpffs, bpf.MeshMapMeshCounts, "the counters of the sidecar shortcut")
	if perCPU == nil || err != nil {
		return nil, err
	}
	return bpf.Sum(perCPU), nil
}
