// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"errors"
	"os"
	"slices"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// AddCounters adds the edge's counters to each Service. Conntrack entries count packets and bytes; their counts
// are kept when they expire, but lost when they are evicted (--max-flows).
func AddCounters(t *api.Tables, bpffs string, names map[uint32]bpf.ServiceName) error {
	counters, err := bpf.ReadServiceCounters(bpffs)
	if err != nil || counters == nil {
		return err
	}
	flows, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = flows.Walk(func(_ conntrack.Tuple, e *conntrack.Entry) {
		sum := counters[e.Lb.Service]
		sum.AddEntry(e)
		counters[e.Lb.Service] = sum
	})
	if err != nil {
		return err
	}
	byOwner := map[service.Ref][]api.PortCounters{}
	for id, name := range names {
		port := codec.PortOf(name)
		byOwner[port.Owner] = append(byOwner[port.Owner], portCounters(id, port, counters[id]))
	}
	for i := range t.Services {
		ports := byOwner[t.Services[i].Ref()]
		slices.SortFunc(ports, func(a, b api.PortCounters) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.ID, b.ID))
		})
		t.Services[i].EdgeCounters = ports
	}
	return nil
}

func portCounters(id uint32, port service.Port, c bpf.ServiceCounters) api.PortCounters {
	return api.PortCounters{
		ID: id, Port: port.Name, Protocol: port.Protocol, NewFlows: c.Flows, RefusedPackets: c.Refused, DroppedPackets: c.Dropped,
		FromClients: conntrack.Traffic{Packets: c.SentPackets, Bytes: c.SentBytes},
		ToClients:   conntrack.Traffic{Packets: c.ReceivedPackets, Bytes: c.ReceivedBytes},
	}
}
