// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
)

// ServiceCounters are the edge's counters of a service, without existing flows: these are counted in their
// conntrack entries.
type ServiceCounters = EdgeTCServiceCounters

// ReadServiceCounters sums the edge's counters of each service id over all CPUs, with those that the agent
// collected from deleted flows; nil if there is no edge.
func ReadServiceCounters(bpffs string) (map[uint32]ServiceCounters, error) {
	tables, err := openServiceCounters(bpffs)
	if err != nil || tables == nil {
		return nil, err
	}
	counts, sent, gone := tables[0], tables[1], tables[2]
	defer closeMaps(map[string]*ebpf.Map{EdgeTCMapServiceCounts: counts, EdgeTCMapServiceUntracked: sent, EdgeTCMapServiceCollected: gone})
	all := map[uint32]ServiceCounters{}
	var id uint32
	var perCPU []ServiceCounters
	it := counts.Iterate()
	for it.Next(&id, &perCPU) {
		sum := all[id]
		for _, c := range perCPU {
			sum.Add(c)
		}
		all[id] = sum
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read table %s: %w", EdgeTCMapServiceCounts, err)
	}
	if err := addSent(all, sent); err != nil {
		return nil, err
	}
	traffic, err := kernelHash[uint32, EdgeTCServiceTraffic]{name: EdgeTCMapServiceCollected, m: gone}.All()
	for id, t := range traffic {
		sum := all[id]
		sum.Add(ServiceCounters{SentPackets: t.SentPackets, SentBytes: t.SentBytes, ReceivedPackets: t.ReceivedPackets, ReceivedBytes: t.ReceivedBytes})
		all[id] = sum
	}
	return all, err
}

// addSent adds what clients sent in packets without conntrack entries.
func addSent(all map[uint32]ServiceCounters, sent *ebpf.Map) error {
	const batch = 1024
	ids := make([]uint32, batch)
	perCPU := make([]EdgeTCServicePackets, batch*ebpf.MustPossibleCPU())
	var cursor ebpf.MapBatchCursor
	for {
		n, err := sent.BatchLookup(&cursor, ids, perCPU, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read table %s: %w", EdgeTCMapServiceUntracked, err)
		}
		for i, c := range perCPU[:n*ebpf.MustPossibleCPU()] {
			if c.Packets == 0 {
				continue
			}
			id := ids[i/ebpf.MustPossibleCPU()]
			sum := all[id]
			sum.SentPackets += c.Packets
			sum.SentBytes += c.Bytes
			all[id] = sum
		}
		if err != nil {
			return nil
		}
	}
}

// openServiceCounters opens service_counts, service_untracked and service_collected.
func openServiceCounters(bpffs string) (tables []*ebpf.Map, err error) {
	for _, name := range []string{EdgeTCMapServiceCounts, EdgeTCMapServiceUntracked, EdgeTCMapServiceCollected} {
		m, err := ebpf.LoadPinnedMap(TablePath(bpffs, name), nil)
		if err == nil {
			tables = append(tables, m)
			continue
		}
		for _, m := range tables {
			m.Close()
		}
		if len(tables) == 0 && errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("open the counters of services under %s: %w", bpffs, err)
	}
	return tables, nil
}

// Add adds the counters of another.
func (c *EdgeTCServiceCounters) Add(o ServiceCounters) {
	c.Flows += o.Flows
	c.Refused += o.Refused
	c.Dropped += o.Dropped
	c.SentPackets += o.SentPackets
	c.SentBytes += o.SentBytes
	c.ReceivedPackets += o.ReceivedPackets
	c.ReceivedBytes += o.ReceivedBytes
}

// AddEntry adds the counts of a flow's entry.
func (c *EdgeTCServiceCounters) AddEntry(t *ConntrackEntry) {
	if t.IsReply() {
		c.ReceivedPackets += t.Packets
		c.ReceivedBytes += t.Bytes
	} else {
		c.SentPackets += t.Packets
		c.SentBytes += t.Bytes
	}
}

// countedServices is the table of service names. It resets what programs have counted of an id when the id is
// allocated or freed.
type countedServices struct {
	Hash[uint32, ServiceName]
	counts []*ebpf.Map // those with Table.ByService: hashes and per-CPU arrays
	// unused is the first id that has no counts: no service has had it since this agent made the
	// tables. 0: an earlier agent made them.
	unused uint32
}

// countServices wraps the table of service names if programs count. Fresh: no service has counts yet.
func (d *Datapath) countServices(fresh bool) {
	s := &countedServices{Hash: d.Tables.Services}
	for _, t := range d.enabled.tables() {
		if t.ByService {
			s.counts = append(s.counts, d.maps[t.Name])
		}
	}
	if fresh {
		s.unused = 1
	}
	if len(s.counts) > 0 {
		d.Tables.Services = s
	}
}

func (s *countedServices) Put(id uint32, name ServiceName) error {
	if s.unused == 0 || id < s.unused {
		if err := s.forget(id); err != nil {
			return err
		}
	} else {
		s.unused = id + 1
	}
	return s.Hash.Put(id, name)
}

func (s *countedServices) Delete(id uint32) error {
	if err := s.Hash.Delete(id); err != nil {
		return err
	}
	return s.forget(id)
}

func (s *countedServices) forget(id uint32) error {
	for _, m := range s.counts {
		if err := reset(m, id); err != nil {
			return fmt.Errorf("the counters of service %d: %w", id, err)
		}
	}
	return nil
}

// reset deletes an entry, or clears it in a per-CPU array, which may be too short for it.
func reset(m *ebpf.Map, id uint32) error {
	if m.Type() != ebpf.PerCPUArray {
		if err := m.Delete(id); !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		return nil
	}
	if id >= m.MaxEntries() {
		return nil
	}
	return m.Put(id, Zeros(m))
}

// Zeros is an empty value of a per-CPU table.
func Zeros(m *ebpf.Map) [][]byte {
	return slices.Repeat([][]byte{make([]byte, m.ValueSize())}, ebpf.MustPossibleCPU())
}
