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

// FlowRecord is what is remembered of a flow of the pod shortcut.
type FlowRecord = bpf.PodPodRecord

// records are the tables of bpf/pod/opener.h, and those of the edge.
type records struct {
	established, opening bpf.Hash[bpf.PodTuple, FlowRecord]
	edge                 []*bpf.ConntrackSets
}

func newRecords(maps map[string]*ebpf.Map) records {
	return records{
		bpf.NewHash[bpf.PodTuple, FlowRecord](bpf.Declared(tables, bpf.PodMapPodEstablished), maps[bpf.PodMapPodEstablished]),
		bpf.NewHash[bpf.PodTuple, FlowRecord](bpf.Declared(tables, bpf.PodMapPodOpening), maps[bpf.PodMapPodOpening]),
		[]*bpf.ConntrackSets{bpf.NewConntrackSets(maps, bpf.EdgeTCMapUnreplied), bpf.NewConntrackSets(maps, bpf.EdgeTCMapConntrack)},
	}
}

func (d kernel) records() records {
	maps := d.ConntrackMaps()
	for _, name := range []string{bpf.PodMapPodEstablished, bpf.PodMapPodOpening} {
		maps[name] = d.Map(name)
	}
	return newRecords(maps)
}

func flowOf(t *bpf.PodTuple) kernelct.Flow {
	return kernelct.Flow{
		Source: bpf.AddrPortFrom(t.Source.Bytes, t.SourcePort), Destination: bpf.AddrPortFrom(t.Destination.Bytes, t.DestinationPort),
		Protocol: t.Protocol,
	}
}

// TupleOf returns the key of the record of a flow.
func TupleOf(f kernelct.Flow) bpf.PodTuple {
	t := bpf.PodTuple{SourcePort: bpf.NetworkOrder(f.Source.Port()), DestinationPort: bpf.NetworkOrder(f.Destination.Port()), Protocol: f.Protocol}
	t.Source.Bytes, t.Destination.Bytes = f.Source.Addr().As16(), f.Destination.Addr().As16()
	return t
}

// replyWait is how long a datagram may wait for the reply, in seconds.
const replyWait = 5

// TrackFlows makes entries of the kernel's conntrack for the flows of the pod shortcut of which an end is one of
// these addresses, or of all (nil), and returns them. Their packets then take the stack, in both directions, and are
// of established flows there. Flows of an end whose value is false are only forgotten.
func (d kernel) TrackFlows(ends map[netip.Addr]bool) ([]kernelct.Flow, error) {
	return d.records().track(ends)
}

func (r records) track(ends map[netip.Addr]bool) (flows []kernelct.Flow, err error) {
	kernel, err := kernelct.Open()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	now := kernelclock.CoarseSeconds()
	for _, table := range []bpf.Hash[bpf.PodTuple, FlowRecord]{r.established, r.opening} {
		all, err := table.All()
		if err != nil {
			return flows, err
		}
		var entries []kernelct.Entry
		var keys []bpf.PodTuple // that end
		for key, record := range all {
			f, replied := flowOf(&key), record.Flags&uint32(bpf.PodPodRecordFlagPOD_REPLIED) != 0
			switch {
			case !concerns(ends, f):
				continue
			case !lives(ends, f.Source.Addr()) || !lives(ends, f.Destination.Addr()):
			case !replied && (f.Protocol == unix.IPPROTO_TCP || now-record.Seen > replyWait):
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
func (r records) edgeFlows(ends map[netip.Addr]bool) (flows []kernelct.Flow, err error) {
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

// UntrackFlows has flows that were handed over take the shortcut again, unless they have ended.
func (d kernel) UntrackFlows(flows []kernelct.Flow) error {
	kernel, err := kernelct.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	open, err := kernel.AreOpen(flows)
	if err != nil {
		return err
	}
	records, now := d.records(), kernelclock.CoarseSeconds()
	var back []kernelct.Flow
	for i, f := range flows {
		if !open[i] {
			continue
		}
		err = records.established.Put(TupleOf(f), FlowRecord{Since: now, Seen: now, Flags: uint32(bpf.PodPodRecordFlagPOD_REPLIED)})
		if err != nil {
			return err
		}
		back = append(back, f)
	}
	return kernel.Delete(back...)
}

// HandedFlows returns the flows of the kernel's conntrack that TrackFlows may have made.
func (d kernel) HandedFlows() ([]kernelct.Flow, error) { return kernelct.Handed() }

// End hands over all flows of the pod shortcut to the kernel's conntrack, before the programs are detached.
func End(bpffs string) error {
	maps, err := bpf.OpenPinned(bpffs, append([]string{bpf.PodMapPodLeases, bpf.PodMapPodEstablished, bpf.PodMapPodOpening}, bpf.ConntrackTableNames()...)...)
	for _, m := range maps {
		defer m.Close()
	}
	if leases := maps[bpf.PodMapPodLeases]; leases != nil {
		if err := leases.Put(uint32(0), LeaseRow{}); err != nil { // new flows take the stack
			return fmt.Errorf("end the lease of the pod shortcut: %w", err)
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil // never enabled
	}
	if err != nil {
		return err
	}
	_, err = newRecords(maps).track(nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) { // no conntrack here any more
		return nil
	}
	return err
}
