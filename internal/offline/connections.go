// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"slices"
	"strings"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// AddConnections adds the statistics of sockets to each Service. Without --socket-stats it adds nothing.
func AddConnections(t *api.Tables, bpffs string, names map[uint32]bpf.ServiceName) error {
	stats, err := bpf.ReadSocketStats(bpffs)
	if err != nil || stats == nil {
		return err
	}
	backends := map[uint32][]api.BackendConnections{}
	for key, s := range stats.Backends {
		backends[key.Service] = append(backends[key.Service], api.BackendConnections{Address: key.Address.String(), Connections: connections(&s)})
	}
	byOwner := map[service.Ref][]api.PortConnections{}
	for id, s := range stats.Services {
		port := codec.PortOf(names[id])
		slices.SortFunc(backends[id], func(a, b api.BackendConnections) int { return strings.Compare(a.Address, b.Address) })
		byOwner[port.Owner] = append(byOwner[port.Owner], api.PortConnections{
			ID: id, Port: port.Name, Protocol: port.Protocol, Connections: connections(&s), Backends: backends[id],
		})
	}
	for i := range t.Services {
		ports := byOwner[t.Services[i].Ref()]
		slices.SortFunc(ports, func(a, b api.PortConnections) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.ID, b.ID))
		})
		t.Services[i].Connections = ports
	}
	return nil
}

func connections(s *bpf.ConnectionStats) api.Connections {
	return api.Connections{
		Started: s.Started, Connecting: s.Connecting(), Failed: s.Failed, Open: s.Open(), Closed: s.Closed,
		SentBytes: s.SentBytes, ReceivedBytes: s.ReceivedBytes, Retransmits: s.Retransmits,
		HandshakeP50Seconds: s.RTTQuantile(0.5).Seconds(), HandshakeP99Seconds: s.RTTQuantile(0.99).Seconds(),
	}
}
