// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// The structures of the edge, as Address and the like.
type (
	// Tuple are the two ends of a packet.
	Tuple = EdgeTCTuple
	// Track is what becomes of the packets of one direction of a flow.
	Track = EdgeTCTrack
	// EdgeDevice are the addresses that the node has on a device.
	EdgeDevice = EdgeTCEdgeDevice
	// EdgeReason says why a packet at the edge met what it met.
	EdgeReason = EdgeTCEdgeReason
	// TrackState is the state of a Track.
	TrackState = EdgeTCTrackState
)

// The states and flags of a Track.
const (
	TrackNew         = EdgeTCTrackStateTRACK_NEW
	TrackAnswered    = EdgeTCTrackStateTRACK_ANSWERED
	TrackEstablished = EdgeTCTrackStateTRACK_ESTABLISHED
	TrackClosing     = EdgeTCTrackStateTRACK_CLOSING
	TrackClosed      = EdgeTCTrackStateTRACK_CLOSED

	TrackReply    = EdgeTCTrackFlagTRACK_REPLY
	TrackLocal    = EdgeTCTrackFlagTRACK_LOCAL
	TrackFIN      = EdgeTCTrackFlagTRACK_FIN
	TrackOutbound = EdgeTCTrackFlagTRACK_OUTBOUND
	TrackDSR      = EdgeTCTrackFlagTRACK_DSR
	TrackLater    = EdgeTCTrackFlagTRACK_LATER
)

// ConntrackTimeouts say how long a flow is remembered on which nothing is sent.
type ConntrackTimeouts struct {
	HalfOpenTCP, HalfOpenUDP time.Duration // not assured
	TCP, UDP                 time.Duration // assured
	Closing, Closed          time.Duration // TCP with one FIN; with a RST, or a FIN of each side
}

// MostTimeout is what programs can tell apart from the past.
const MostTimeout = 24 * 24 * time.Hour

// ticks are the timeouts by enum conntrack_timeout, in units of 2^20 ns.
func (t *ConntrackTimeouts) ticks() (all [EdgeTCConntrackTimeoutTIMEOUTS]uint32) {
	for i, d := range map[EdgeTCConntrackTimeout]time.Duration{
		EdgeTCConntrackTimeoutTIMEOUT_HALF_OPEN_TCP: t.HalfOpenTCP, EdgeTCConntrackTimeoutTIMEOUT_HALF_OPEN_UDP: t.HalfOpenUDP,
		EdgeTCConntrackTimeoutTIMEOUT_TCP: t.TCP, EdgeTCConntrackTimeoutTIMEOUT_UDP: t.UDP,
		EdgeTCConntrackTimeoutTIMEOUT_CLOSING: t.Closing, EdgeTCConntrackTimeoutTIMEOUT_CLOSED: t.Closed,
	} {
		all[i] = uint32(d.Nanoseconds() >> 20)
	}
	return all
}

// Balancer says who has an address of the table Balancers.
type Balancer = EdgeTCBalancer

// The values of a Balancer.
const (
	IsBalancer = EdgeTCBalancerBALANCER
	IsOwn      = EdgeTCBalancerBALANCER_OWN
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Overlaps says whether the ranges have a port in common.
func (r PortRange) Overlaps(o PortRange) bool { return r.First <= o.Last && o.First <= r.Last }

// EdgeOptions say how clients outside of the cluster are served.
type EdgeOptions struct {
	// SNATPorts are one or two ranges of ports under which the node speaks for
	// clients.
	SNATPorts []PortRange
	// ICMPRate is how many ICMP errors each CPU sends in a second, 0 for as many as
	// there are; nil: the programs' own 1000.
	ICMPRate *uint32
	// Timeouts of flows; nil: the programs' own.
	Timeouts *ConntrackTimeouts
	// Dispatcher: a device's XDP program is one of a dispatcher of libxdp's protocol
	// even if it is the only one, so that others can join it.
	Dispatcher bool
	// AcceptDSR: what balancers have encapsulated may be for backends of this node (table
	// Balancers), as far as UntrackedEnds.Accepted says.
	AcceptDSR bool
	// LateXDP: the program for XDP is loaded when the first device is to have it, and not
	// before; the verifier is spared the work where none is.
	LateXDP bool
}

// edgeObject is a file of programs over the edge's tables.
type edgeObject struct {
	load func() (*ebpf.CollectionSpec, error)
	// pseudoHeader: it has the variable for that.
	pseudoHeader bool
}

var edgeObjects = []edgeObject{{LoadEdgeTC, true}, xdpObject: {LoadEdgeXDP, false}}

const xdpObject = 1

// edgeSpecs are what is attached to devices, if that is wanted, with their tables made. It
// returns the tables that were there.
func (d *Datapath) edgeSpecs() (specs []*ebpf.CollectionSpec, pinned map[string]*ebpf.Map, err error) {
	if d.options.Edge == nil {
		return nil, nil, nil
	}
	for i, o := range edgeObjects {
		if d.options.Edge.LateXDP && i == xdpObject {
			break
		}
		spec, err := o.load()
		if err != nil {
			return nil, pinned, err
		}
		if err := d.setEdgeConstants(spec, o.pseudoHeader); err != nil {
			return nil, pinned, err
		}
		if pinned == nil {
			if pinned, err = d.pinnedEdgeTables(spec); err != nil {
				return nil, pinned, err
			}
		}
		if err := d.makeTables(spec, pinned); err != nil {
			return nil, pinned, err
		}
		specs = append(specs, spec)
	}
	return specs, pinned, nil
}

// edgeProgram is the program for a hook, which is loaded now if it has not been.
func (d *Datapath) edgeProgram(hook EdgeHook) (*ebpf.Program, error) {
	if p := d.program(edgePrograms[hook]); p != nil || hook != EdgeXDP {
		return p, nil
	}
	spec, err := LoadEdgeXDP()
	if err != nil {
		return nil, err
	}
	if err := d.setEdgeConstants(spec, false); err != nil {
		return nil, err
	}
	err = d.loadPrograms([]*ebpf.CollectionSpec{spec})
	return d.program(edgePrograms[hook]), err
}

// pinnedEdgeTables finds the edge's tables of an earlier agent, and gives the spec
// of those that are to be made their sizes.
func (d *Datapath) pinnedEdgeTables(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	for name, entries := range d.options.Limits.edgeEntries() {
		spec.Maps[name].MaxEntries = entries
	}
	own := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}}
	for name, s := range spec.Maps {
		if d.maps[name] == nil && !isScratch(name, s) {
			own.Maps[name] = s
		}
	}
	attached, err := EdgeAttachments(d.options.BPFFS)
	if err != nil {
		return nil, err
	}
	for _, a := range attached {
		if err := recoverProgram(d.options.BPFFS, ebpf.ProgramID(a.ProgramID), own.Maps); err != nil {
			return nil, fmt.Errorf("tables of the program attached to %s of device %d: %w", a.Hook, a.Device, err)
		}
	}
	return d.pinnedTables(own)
}

// edgeTables are the names of those that the edge has beside the shared ones.
func edgeTables() (names []string, err error) {
	spec, err := LoadEdgeTC()
	if err != nil {
		return nil, err
	}
	shared, err := LoadSock()
	if err != nil {
		return nil, err
	}
	for name, s := range spec.Maps {
		if shared.Maps[name] == nil && !isScratch(name, s) {
			names = append(names, name)
		}
	}
	return names, nil
}

// tablesOf keeps the tables that an object knows.
func tablesOf(spec *ebpf.CollectionSpec, tables map[string]*ebpf.Map) map[string]*ebpf.Map {
	known := maps.Clone(tables)
	maps.DeleteFunc(known, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	return known
}

// setEdgeConstants sets those that an object has.
func (d *Datapath) setEdgeConstants(spec *ebpf.CollectionSpec, pseudoHeader bool) error {
	var first, count [2]uint16
	for i, r := range d.options.Edge.SNATPorts {
		first[i], count[i] = r.First, r.Last-r.First+1
	}
	err := errors.Join(spec.Variables[EdgeTCVarSnatFirst].Set(first), spec.Variables[EdgeTCVarSnatCount].Set(count))
	if v := spec.Variables[EdgeTCVarHalfOpenSets]; v != nil {
		err = errors.Join(err, v.Set(halfOpenSets(d.options.Limits.Flows)), spec.Variables[EdgeTCVarTracksSets].Set(tracksSets(d.options.Limits.Flows)),
			spec.Variables[EdgeTCVarWeaklyOrdered].Set(weaklyOrdered()))
	}
	if v, t := spec.Variables[EdgeTCVarConntrackTimeouts], d.options.Edge.Timeouts; v != nil && t != nil {
		err = errors.Join(err, v.Set(t.ticks()))
	}
	if rate, v := d.options.Edge.ICMPRate, spec.Variables[EdgeTCVarIcmpPerSecond]; rate != nil && v != nil {
		err = errors.Join(err, v.Set(*rate))
	}
	var accept uint8
	if d.options.Edge.AcceptDSR {
		accept = 1
	}
	if v := spec.Variables[EdgeTCVarDsrAccept]; v != nil {
		err = errors.Join(err, v.Set(accept))
	}
	if pseudoHeader && err == nil {
		err = spec.Variables[EdgeTCVarPseudoHeaderV6].Set(PseudoHeaderV6())
	}
	return err
}

// CheckSNATPorts refuses ranges that the programs cannot use: more than two,
// empty ones, and such that overlap.
func CheckSNATPorts(ranges []PortRange) error {
	if len(ranges) == 0 || len(ranges) > 2 {
		return fmt.Errorf("%d ranges: give one or two", len(ranges))
	}
	for _, r := range ranges {
		if r.First == 0 || r.First > r.Last {
			return fmt.Errorf("range %s: from a port above 0 to one that is not below it", r)
		}
	}
	if len(ranges) == 2 && ranges[0].Overlaps(ranges[1]) {
		return fmt.Errorf("ranges %s and %s overlap", ranges[0], ranges[1])
	}
	return nil
}

// EdgeDevices is the table of devices by their index.
func (d *Datapath) EdgeDevices() Hash[uint32, EdgeDevice] {
	return kernelHash[uint32, EdgeDevice]{EdgeTCMapEdgeDevices, d.maps[EdgeTCMapEdgeDevices]}
}

// Balancers is the table of networks whose encapsulated packets are for backends of this
// node.
func (d *Datapath) Balancers() Hash[NetworkKey, Balancer] {
	return kernelHash[NetworkKey, Balancer]{EdgeTCMapBalancers, d.maps[EdgeTCMapBalancers]}
}

// removeEdge takes away what an earlier agent left that had an edge: links,
// filters and tables.
func removeEdge(bpffs string) error {
	if err := recoverChanges(bpffs); err != nil {
		return err
	}
	attached, err := EdgeAttachments(bpffs)
	if err != nil {
		return err
	}
	for _, a := range slices.Backward(attached) {
		if err := a.takeDown(bpffs); err != nil {
			return fmt.Errorf("detach %s of device %d: %w", a.Hook, a.Device, err)
		}
	}
	names, err := edgeTables()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Remove(TablePath(bpffs, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// isScratch says whether a map is no table: constants, and memory of one object's
// programs for as long as they work on a packet.
func isScratch(name string, s *ebpf.MapSpec) bool {
	return strings.HasPrefix(name, ".") || s.Type == ebpf.PerCPUArray && !isCounters(name)
}

// isCounters says whether a table has counts, which may begin anew.
func isCounters(name string) bool {
	switch name {
	case SockMapSocketCounts, EdgeTCMapEdgeCounts, EdgeTCMapServiceCounts, EdgeTCMapServiceSent:
		return true
	}
	return false
}
