// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/util/kernelclock"
)

// PodRecord is what is remembered of a flow of the pod shortcut.
type PodRecord = bpf.PodPodRecord

// podRecords are the tables of bpf/pod/opener.h, and those of the edge.
type podRecords struct {
	established, opening bpf.Hash[bpf.PodTuple, PodRecord]
	edge                 []*bpf.ConntrackSets
}

func newPodRecords(maps map[string]*ebpf.Map) podRecords {
	return podRecords{
		bpf.NewHash[bpf.PodTuple, PodRecord](bpf.Declared(podTables, bpf.PodMapPodEstablished), maps[bpf.PodMapPodEstablished]),
		bpf.NewHash[bpf.PodTuple, PodRecord](bpf.Declared(podTables, bpf.PodMapPodOpening), maps[bpf.PodMapPodOpening]),
		[]*bpf.ConntrackSets{bpf.NewConntrackSets(maps, bpf.EdgeTCMapUnreplied), bpf.NewConntrackSets(maps, bpf.EdgeTCMapConntrack)},
	}
}

func (d PodKernel) podRecords() podRecords {
	maps := d.ConntrackMaps()
	for _, name := range []string{bpf.PodMapPodEstablished, bpf.PodMapPodOpening} {
		maps[name] = d.Map(name)
	}
	return newPodRecords(maps)
}

func podFlowOf(t *bpf.PodTuple) kernelct.Flow {
	return kernelct.Flow{
		Source: bpf.AddrPortFrom(t.Source.Bytes, t.SourcePort), Destination: bpf.AddrPortFrom(t.Destination.Bytes, t.DestinationPort),
		Protocol: t.Protocol,
	}
}

// PodTupleOf returns the key of the record of a flow.
func PodTupleOf(f kernelct.Flow) bpf.PodTuple {
	t := bpf.PodTuple{SourcePort: bpf.NetworkOrder(f.Source.Port()), DestinationPort: bpf.NetworkOrder(f.Destination.Port()), Protocol: f.Protocol}
	t.Source.Bytes, t.Destination.Bytes = f.Source.Addr().As16(), f.Destination.Addr().As16()
	return t
}

// podReplyWait is how long a datagram may wait for the reply, in seconds.
const podReplyWait = 5

// TrackPodFlows makes entries of the kernel's conntrack for the flows of the pod shortcut of which an end is one of
// these addresses, or of all (nil), and returns them. Their packets then take the stack, in both directions, and are
// of established flows there. Flows of an end whose value is false are only forgotten.
func (d PodKernel) TrackPodFlows(ends map[netip.Addr]bool) ([]kernelct.Flow, error) {
	return d.podRecords().track(ends)
}

func (r podRecords) track(ends map[netip.Addr]bool) (flows []kernelct.Flow, err error) {
	kernel, err := kernelct.Open()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	now := kernelclock.CoarseSeconds()
	for _, table := range []bpf.Hash[bpf.PodTuple, PodRecord]{r.established, r.opening} {
		all, err := table.All()
		if err != nil {
			return flows, err
		}
		var entries []kernelct.Entry
		var keys []bpf.PodTuple // that end
		for key, record := range all {
			f, replied := podFlowOf(&key), record.Flags&uint32(bpf.PodPodRecordFlagPOD_REPLIED) != 0
			switch {
			case !concerns(ends, f):
				continue
			case !lives(ends, f.Source.Addr()) || !lives(ends, f.Destination.Addr()):
			case !replied && (f.Protocol == unix.IPPROTO_TCP || now-record.Seen > podReplyWait):
				continue // its opener sends the next packet
			default:
				entries, flows = append(entries, kernelct.Entry{Flow: f, Replied: replied}), append(flows, f)
			}
			keys = append(keys, key)
		}
		if err := kernel.Create(entries...); err != nil {
			return flows, err
		}
		for _, key := range keys {
			if err := table.Delete(key); err != nil {
				return flows, err
			}
		}
	}
	ofServices, err := r.edgeFlows(ends)
	if err != nil {
		return flows, err
	}
	entries := make([]kernelct.Entry, len(ofServices))
	for i, f := range ofServices {
		entries[i] = kernelct.Entry{Flow: f, Replied: true}
	}
	return append(flows, ofServices...), kernel.Create(entries...)
}

// edgeFlows returns the flows of the edge that the shortcut may have (is_local_reply in bpf/conntrack/conntrack.h), as
// conntrack sees them: from the client to the pod.
func (r podRecords) edgeFlows(ends map[netip.Addr]bool) (flows []kernelct.Flow, err error) {
	const others = uint8(bpf.ConntrackFIN | bpf.ConntrackDSR | bpf.ConntrackStream)
	for _, table := range r.edge {
		err := table.Walk(func(e *bpf.ConntrackSlot) bool {
			f := kernelct.Flow{Source: e.Key.To(), Destination: e.Key.From(), Protocol: e.Key.Protocol}
			state := bpf.ConntrackState(e.Ct.State)
			if e.Ct.Flags&^others == uint8(bpf.ConntrackReply|bpf.ConntrackLocal) && e.Ct.Device != 0 && f.Protocol != unix.IPPROTO_SCTP &&
				state != bpf.ConntrackNew && state != bpf.ConntrackClosed &&
				concerns(ends, f) && lives(ends, f.Source.Addr()) && lives(ends, f.Destination.Addr()) {
				flows = append(flows, f)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return flows, nil
}

func concerns(ends map[netip.Addr]bool, f kernelct.Flow) bool {
	_, source := ends[f.Source.Addr()]
	_, destination := ends[f.Destination.Addr()]
	return ends == nil || source || destination
}

func lives(ends map[netip.Addr]bool, a netip.Addr) bool {
	alive, named := ends[a]
	return alive || !named
}

// UntrackPodFlows has flows that were handed over take the shortcut again, unless they have ended.
func (d PodKernel) UntrackPodFlows(flows []kernelct.Flow) error {
	kernel, err := kernelct.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	open, err := kernel.AreOpen(flows)
	if err != nil {
		return err
	}
	records, now := d.podRecords(), kernelclock.CoarseSeconds()
	var back []kernelct.Flow
	for i, f := range flows {
		if !open[i] {
			continue
		}
		err = records.established.Put(PodTupleOf(f), PodRecord{Since: now, Seen: now, Flags: uint32(bpf.PodPodRecordFlagPOD_REPLIED)})
		if err != nil {
			return err
		}
		back = append(back, f)
	}
	return kernel.Delete(back...)
}

// HandedPodFlows returns the flows of the kernel's conntrack that TrackPodFlows may have made.
func (d PodKernel) HandedPodFlows() ([]kernelct.Flow, error) { return kernelct.Handed() }

// EndPodShortcut hands over all flows of the pod shortcut to the kernel's conntrack, before the programs are detached.
func EndPodShortcut(bpffs string) error {
	leases, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, bpf.PodMapPodLeases), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil // never enabled
	}
	if err != nil {
		return fmt.Errorf("open the lease of the pod shortcut: %w", err)
	}
	defer leases.Close()
	if err := leases.Put(uint32(0), PodLease{}); err != nil { // new flows take the stack
		return fmt.Errorf("end the lease of the pod shortcut: %w", err)
	}
	maps := map[string]*ebpf.Map{}
	for _, name := range append(bpf.ConntrackTableNames(), bpf.PodMapPodEstablished, bpf.PodMapPodOpening) {
		m, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open the flows of the pod shortcut: %w", err)
		}
		defer m.Close()
		maps[name] = m
	}
	_, err = newPodRecords(maps).track(nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) { // no conntrack here any more
		return nil
	}
	return err
}
