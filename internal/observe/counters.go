// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"errors"
	"os"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/sync"
)

// PortCounters is what the edge has counted for a port of a Service since the port
// came: for clients outside of the cluster, and others whose packets come that way.
type PortCounters struct {
	// ID is the number of the service port in the tables.
	ID       uint32           `json:"id"`
	Port     string           `json:"port,omitempty"`
	Protocol service.Protocol `json:"protocol"`
	Flows    uint64           `json:"flows"` // begun
	Refused  uint64           `json:"refused"`
	Dropped  uint64           `json:"dropped"`
	Sent     Traffic          `json:"sent"`     // by clients
	Received Traffic          `json:"received"` // by clients
}

// AddCounters adds to the Services what the edge has counted for them. What flows
// have is in their records, and is kept when these go; only of flows that make room
// for others (--max-flows) it is lost.
func (t *Tables) AddCounters(bpffs string, names map[uint32]datapath.ServiceName) error {
	counters, err := datapath.ReadServiceCounters(bpffs)
	if err != nil || counters == nil {
		return err
	}
	flows, err := datapath.OpenFlows(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, table := range []datapath.FlowTable{flows.HalfOpen, flows.Tracks} {
		err := table.Walk(func(_ datapath.Tuple, track *datapath.Track) bool {
			sum := counters[track.Service]
			sum.AddTrack(track)
			counters[track.Service] = sum
			return true
		})
		if err != nil {
			return err
		}
	}
	byOwner := map[service.Ref][]PortCounters{}
	for id, name := range names {
		port := sync.PortOf(name)
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

func portCounters(id uint32, port service.Port, c datapath.ServiceCounters) PortCounters {
	return PortCounters{
		ID: id, Port: port.Name, Protocol: port.Protocol, Flows: c.Flows, Refused: c.Refused, Dropped: c.Dropped,
		Sent:     Traffic{c.SentPackets, c.SentBytes},
		Received: Traffic{c.ReceivedPackets, c.ReceivedBytes},
	}
}
