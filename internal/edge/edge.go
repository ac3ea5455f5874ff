// SPDX-License-Identifier: Apache-2.0

// Package edge serves clients outside of the cluster, and pods without the socket
// shortcut: it chooses the devices that these are behind and those that lead to
// backends, attaches the datapath there, and ends the records of flows that have gone.
package edge

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/rtnetlink"
	"beeline.io/beeline/internal/service"
)

// Mode says how the edge is entered.
type Mode string

const (
	Auto Mode = "auto" // native XDP where it serves, else tc
	XDP  Mode = "xdp"
	TC   Mode = "tc"
	Off  Mode = "off"
)

// Modes are all of them, as a flag has them.
var Modes = []string{string(Auto), string(XDP), string(TC), string(Off)}

// Config is what the operator decides.
type Config struct {
	Mode Mode
	// Generic uses generic XDP.
	Generic bool
	// Devices are names or shell patterns; empty: they are detected.
	Devices []string
	// Timeouts of flows.
	Timeouts Timeouts
	// Serves says whether a backend serves a service at present.
	Serves func(datapath.Connection) bool
	// Backends are the addresses of those on other nodes, sorted; nil: there are none.
	Backends func() []netip.Addr
	// Contested has a sweep looked at by those who wait for flows to have gone: it returns
	// what takes each record, and what is called after the last; nil: nobody waits.
	Contested func() (note func(datapath.Tuple, *datapath.Track), settle func() error)
	// Admit has the door let in what asks for the frontends that there are; nil: there are
	// none.
	Admit func()
	// DSR are the addresses that packets are sent to by it, of backends on other nodes or of
	// these nodes, by kind; nil: there are none.
	DSR func() map[service.DSR][]netip.Addr
	// Counters reads what the programs have counted; nil: nobody looks.
	Counters func() (map[string]uint64, error)
	// SetSysctls has the sysctls set without which the kernel forwards nothing.
	SetSysctls bool
	Log        *slog.Logger
}

// Datapath is what the edge needs of package datapath.
type Datapath interface {
	AttachEdgeTC(device int) error
	AttachEdgeXDP(device int, mode datapath.XDPMode) ([]datapath.ChainProgram, error)
	DetachEdge(device int, hooks ...datapath.EdgeHook) error
	EdgeAttachments() ([]datapath.EdgeAttachment, error)
	EdgeDevices() datapath.Hash[uint32, datapath.EdgeDevice]
	Flows() *datapath.Flows
	Door() *datapath.Door
	WaitForReaders() error
}

// Edge keeps the devices and the flows. All methods may be called from any
// goroutine. A nil Edge does nothing: its mode is off.
type Edge struct {
	config   Config
	datapath Datapath
	read     func(backends []netip.Addr) ([]Device, error)
	wayTo    func(netip.Addr) (device int, err error)
	lost     func(device string) uint64 // xdpLosses

	changed chan struct{} // devices, addresses or routes
	left    chan struct{} // backends of UDP Services
	began   chan struct{} // the edge is at its devices

	mu        sync.Mutex
	ready     bool // the tables are complete
	node      []netip.Addr
	pods      []netip.Prefix
	elsewhere needed[netip.Addr] // backends on other nodes: of Services, and of flows that go on
	entered   needed[int]        // devices that clients are behind, and pods: those chosen, and those of flows that go on
	devices   map[int]*attached
	problems  []string // that are not of one device
	tables    map[uint32]datapath.EdgeDevice
	sweeps    sweeps
	shortage  shortage
	dsr       []DSRStatus
	// forwards are the families that packets have to be forwarded of, and forwarding is what
	// was logged of the sysctls that keep them from it, which are below the folder sysctls.
	forwards   []service.Family
	forwarding []string
	sysctls    string
}

// attached is a device and how the edge is there.
type attached struct {
	Device
	entry  entry
	chain  []datapath.ChainProgram // it shares the XDP hook with others
	failed error                   // it is not
	losses losses
}

// New prepares an edge. Nothing is attached before Start.
func New(d Datapath, c Config) *Edge {
	return &Edge{
		config: c, datapath: d, read: readDevices, wayTo: wayTo, lost: xdpLosses,
		changed: make(chan struct{}, 1), left: make(chan struct{}, 1), began: make(chan struct{}, 1),
		devices: map[int]*attached{}, sysctls: sysctlRoot,
	}
}

// Start attaches the edge to its devices; from now on it follows their changes.
func (e *Edge) Start() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = true
	if err := e.noteEarlier(); err != nil {
		e.config.Log.Error("flows that an earlier agent left may go unanswered", "error", err)
	}
	e.reconcile(false)
	rtnetlink.Notify(e.began)
}

// SetNode takes the addresses of the Node object, in its order.
func (e *Edge) SetNode(addresses []netip.Addr) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.node, addresses) {
		e.node = slices.Clone(addresses)
		rtnetlink.Notify(e.changed)
	}
}

// SetPods takes where the pods of this node are whose packets to the node's own
// addresses ask for Services: no socket hook decides for them, and what stays on the
// node comes by none of the devices that clients are behind. When it returns the edge is
// at the devices of those that are new: their sockets are left to it from then on. It
// stays at those of others while flows go on that began there (R30).
func (e *Edge) SetPods(networks []netip.Prefix) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(e.pods, networks) {
		return
	}
	more := slices.ContainsFunc(networks, func(n netip.Prefix) bool { return !slices.Contains(e.pods, n) })
	e.pods = slices.Clone(networks)
	if more && e.ready {
		e.reconcile(false)
		return
	}
	rtnetlink.Notify(e.changed)
}

// Mend attaches what somebody has taken down, and returns what that was.
func (e *Edge) Mend() []string {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reconcile(true)
}

// reconcile attaches and detaches until the devices are as they should be. With
// audit it looks at what is attached, and does not rely on what it did before.
func (e *Edge) reconcile(audit bool) (mended []string) {
	e.problems = nil
	e.elsewhere.add(e.serving())
	devices, err := e.read(slices.SortedFunc(maps.Keys(e.elsewhere.known), netip.Addr.Compare))
	if err != nil {
		e.problem("the devices of this node cannot be read; those known so far are served: %v", err)
		return nil
	}
	choosePods(devices, e.pods)
	e.entered.add(e.asked()) // until now
	chosen := choose(devices, e.config.Devices, e.node, e.entered.known)
	e.noteDSR(devices, chosen)
	for _, pattern := range unmatched(devices, e.config.Devices) {
		e.problem("--devices %s: no such device", pattern)
	}
	if audit {
		mended = e.findLost()
	}
	e.writeDevices(ownAddresses(devices, chosen, e.node), audit)
	keep := map[int]bool{}
	for _, d := range chosen {
		keep[d.Index] = true
		e.attach(d)
	}
	e.detachOthers(keep)
	e.noteForwarding()
	return mended
}

func (e *Edge) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	e.problems = append(e.problems, text)
	e.config.Log.Error("the edge: " + text)
}

// writeDevices makes the addresses known under which the node sends.
func (e *Edge) writeDevices(want map[uint32]datapath.EdgeDevice, audit bool) {
	table := e.datapath.EdgeDevices()
	if e.tables == nil || audit {
		have, err := table.All()
		if err != nil {
			e.problem("%v", err)
			return
		}
		e.tables = have
	}
	for index, d := range want {
		if have, ok := e.tables[index]; ok && have == d {
			continue
		}
		if err := table.Put(index, d); err != nil {
			e.problem("the addresses of device %d: %v", index, err)
			continue
		}
		e.tables[index] = d
	}
	for index := range e.tables {
		if _, ok := want[index]; ok {
			continue
		}
		if err := table.Delete(index); err != nil {
			e.problem("the addresses of device %d: %v", index, err)
			continue
		}
		delete(e.tables, index)
	}
}
