// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// ServiceCounters is what the edge counts for a service, without what the flows have
// that are remembered still: their records tell.
type ServiceCounters = EdgeTCServiceCounters

// ReadServiceCounters adds up what the edge counted for each service id on all CPUs,
// and what the agent took over from flows that are over; nil where there is no edge.
func ReadServiceCounters(bpffs string) (map[uint32]ServiceCounters, error) {
	counts, gone, err := openServiceCounters(bpffs)
	if err != nil || counts == nil {
		return nil, err
	}
	defer counts.Close()
	defer gone.Close()
	all := map[uint32]ServiceCounters{}
	var id uint32
	var perCPU []ServiceCounters
	it := counts.Iterate()
	for it.Next(&id, &perCPU) {
		sum := all[id]
		for _, c := range perCPU {
			sum.add(c)
		}
		all[id] = sum
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read table %s: %w", EdgeTCMapServiceCounts, err)
	}
	traffic, err := kernelHash[uint32, EdgeTCServiceTraffic]{EdgeTCMapServiceGone, gone}.All()
	for id, t := range traffic {
		sum := all[id]
		sum.add(ServiceCounters{SentPackets: t.SentPackets, SentBytes: t.SentBytes, ReceivedPackets: t.ReceivedPackets, ReceivedBytes: t.ReceivedBytes})
		all[id] = sum
	}
	return all, err
}

func openServiceCounters(bpffs string) (counts, gone *ebpf.Map, err error) {
	counts, err = ebpf.LoadPinnedMap(TablePath(bpffs, EdgeTCMapServiceCounts), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the counters of services under %s: %w", bpffs, err)
	}
	gone, err = ebpf.LoadPinnedMap(TablePath(bpffs, EdgeTCMapServiceGone), nil)
	if err != nil {
		counts.Close()
		return nil, nil, fmt.Errorf("open the counters of services under %s: %w", bpffs, err)
	}
	return counts, gone, nil
}

func (c *EdgeTCServiceCounters) add(o ServiceCounters) {
	c.Flows += o.Flows
	c.Refused += o.Refused
	c.Dropped += o.Dropped
	c.SentPackets += o.SentPackets
	c.SentBytes += o.SentBytes
	c.ReceivedPackets += o.ReceivedPackets
	c.ReceivedBytes += o.ReceivedBytes
}

// AddTrack adds what a flow's record has counted.
func (c *EdgeTCServiceCounters) AddTrack(t *Track) {
	if t.IsReply() {
		c.ReceivedPackets += t.Packets
		c.ReceivedBytes += t.Bytes
	} else {
		c.SentPackets += t.Packets
		c.SentBytes += t.Bytes
	}
}

// keepTraffic takes over what a flow has counted whose record has gone. Two
// processes that do so at one time for one service may lose a record's counts.
func keepTraffic(gone *ebpf.Map, t *Track) error {
	if gone == nil || t.Packets == 0 {
		return nil
	}
	var sum EdgeTCServiceTraffic
	if err := gone.Lookup(t.Service, &sum); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read table %s: %w", EdgeTCMapServiceGone, err)
	}
	if t.IsReply() {
		sum.ReceivedPackets += t.Packets
		sum.ReceivedBytes += t.Bytes
	} else {
		sum.SentPackets += t.Packets
		sum.SentBytes += t.Bytes
	}
	if err := gone.Put(t.Service, &sum); err != nil {
		return fmt.Errorf("write table %s: %w", EdgeTCMapServiceGone, err)
	}
	return nil
}

// countedServices are the names of services, with whose ids their counters come and
// go.
type countedServices struct {
	Hash[uint32, ServiceName]
	counts, gone *ebpf.Map
}

func (s countedServices) Put(id uint32, name ServiceName) error {
	if err := s.forget(id); err != nil {
		return err
	}
	return s.Hash.Put(id, name)
}

func (s countedServices) Delete(id uint32) error {
	if err := s.Hash.Delete(id); err != nil {
		return err
	}
	return s.forget(id)
}

func (s countedServices) forget(id uint32) error {
	for _, m := range []*ebpf.Map{s.counts, s.gone} {
		if err := m.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("the counters of service %d: %w", id, err)
		}
	}
	return nil
}
