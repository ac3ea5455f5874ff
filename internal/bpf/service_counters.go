// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// ServiceCounters are the edge's counters of a service, without existing flows: these are counted in their
// conntrack entries.
type ServiceCounters = EdgeTCServiceCounters

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
