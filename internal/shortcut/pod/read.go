// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"

	"beeline.io/beeline/internal/node"
)

// readNetwork returns what tells where the pods of the node are.
func readNetwork(from *node.Network) (n *network, err error) {
	n = &network{own: map[netip.Addr]bool{}}
	if n.devices, err = from.Devices(); err != nil {
		return nil, err
	}
	routes, err := from.Routes()
	if err != nil {
		return nil, err
	}
	n.noteRoutes(routes)
	if n.neighbours, err = from.Neighbours(); err != nil {
		return nil, err
	}
	if n.ports, err = from.ForwardingEntries(); err != nil {
		return nil, err
	}
	addresses, err := from.Addresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		n.own[a.Addr] = true
	}
	if n.rpFilters, err = from.RPFilters(); err != nil {
		return nil, err
	}
	rules, err := from.Rules()
	if err != nil {
		return nil, err
	}
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
