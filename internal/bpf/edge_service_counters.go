// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// ReadServiceCounters sums the edge's counters of each service id over all CPUs, with those that the agent
// collected from deleted flows; nil if there is no edge.
func ReadServiceCounters(bpffs string) (map[uint32]ServiceCounters, error) {
	tables, err := openServiceCounters(bpffs)
	if err != nil || tables == nil {
		return nil, err
	}
	counts, sent, gone := tables[0], tables[1], tables[2]
	defer func() {
		for _, m := range tables {
			m.Close()
		}
	}()
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
	traffic, err := NewHash[uint32, EdgeTCServiceTraffic](Declared(edgeTables, EdgeTCMapServiceCollected), gone).All()
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
