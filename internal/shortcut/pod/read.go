// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"net/netip"

	"beeline.io/beeline/internal/node"
)

// readNetwork returns what tells where the pods of the node are.
func readNetwork(from *node.Network) (*network, error) {
	n := &network{own: map[netip.Addr]bool{}}
	var failed [7]error
	n.devices, failed[0] = from.Devices()
	n.neighbours, failed[1] = from.Neighbours()
	n.ports, failed[2] = from.ForwardingEntries()
	n.rpFilters, failed[3] = from.RPFilters()
	routes, err := from.Routes()
	failed[4] = err
	rules, err := from.Rules()
	failed[5] = err
	addresses, err := from.Addresses()
	failed[6] = err
	if err := errors.Join(failed[:]...); err != nil {
		return nil, err
	}
	for _, a := range addresses {
		n.own[a.Addr] = true
	}
	n.noteRoutes(routes)
	n.noteRules(rules)
	n.prepare()
	return n, nil
}

func (n *network) noteRoutes(list []node.Route) {
	for _, r := range list {
		for _, hop := range r.Hops {
			several := len(r.Hops) > 1
			n.routes = append(n.routes, route{to: r.To, device: hop.Device, direct: !several && !hop.Gateway.IsValid(), multipath: several})
		}
	}
	n.routeMTUs = node.NewDestinationMTUs(list)
}

func (n *network) noteRules(rules []node.Rule) {
	for _, r := range rules {
		if !r.IPv6 && r.Input != "" && r.Input != "lo" {
			n.ruleInputs = append(n.ruleInputs, r.Input)
		}
		n.ruleMarks = n.ruleMarks || r.MarkMask != 0
	}
}
