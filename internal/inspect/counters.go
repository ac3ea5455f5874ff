// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"os"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// PortCounters are the edge's counters of a service port, since the port was added. They count clients outside
// the cluster, and other clients whose packets the edge handles.
type PortCounters struct {
	// ID is the ID of the service port in the tables.
	ID       uint32            `json:"id"`
	Port     string            `json:"port,omitempty"`
	Protocol service.Protocol  `json:"protocol"`
	Flows    uint64            `json:"flows"` // begun
	Refused  uint64            `json:"refused"`
	Dropped  uint64            `json:"dropped"`
	Sent     conntrack.Traffic `json:"sent"`     // by clients
	Received conntrack.Traffic `json:"received"` // by clients
}

// AddCounters adds the edge's counters to each Service. Conntrack entries count packets and bytes; their counts
// are kept when they expire, but lost when they are evicted (--max-flows).
func (t *Tables) AddCounters(bpffs string, names map[uint32]bpf.ServiceName) error {
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
	byOwner := map[service.Ref][]PortCounters{}
	for id, name := range names {
		port := codec.PortOf(name)
		byOwner[port.Owner] = append(byOwner[port.Owner], portCounters(id, port, counters[id]))
	}
	for i := range t.Services {
		ports := byOwner[t.Services[i].Ref()]
		slices.SortFunc(ports, func(a, b PortCounters) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.ID, b.ID))
		})
		t.Services[i].Counters = ports
	}
	return nil
}

func portCounters(id uint32, port service.Port, c bpf.ServiceCounters) PortCounters {
	return PortCounters{
		ID: id, Port: port.Name, Protocol: port.Protocol, Flows: c.Flows, Refused: c.Refused, Dropped: c.Dropped,
		Sent:     conntrack.Traffic{Packets: c.SentPackets, Bytes: c.SentBytes},
		Received: conntrack.Traffic{Packets: c.ReceivedPackets, Bytes: c.ReceivedBytes},
	}
}
