// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/flow"
)

// forwardedPolicies returns the XFRM policies for packets that the node forwards. A policy with a mark counts as one
// for all marks: rules may mark the packets.
func forwardedPolicies(network *node.Network) ([]node.XFRMPolicy, error) {
	all, err := network.XFRMPolicies()
	return slices.DeleteFunc(all, func(p node.XFRMPolicy) bool { return p.Direction == node.XFRMIn }), err
}

// policyAbout returns a policy that may concern packets of a flow or its replies; nil: none. The stack asks for
// policies of forwarded packets with the tuple before NAT (nf_nat_decode_session), for those of output after NAT of
// destinations, and again after NAT of sources.
func policyAbout(policies []node.XFRMPolicy, f flow.Flow) *node.XFRMPolicy {
	for i := range policies {
		for _, one := range []flow.Flow{f, f.Reverse()} {
			between := flow.Tuple{Source: one.In.Source, Destination: one.Out.Destination, Protocol: one.In.Protocol}
			for _, t := range []flow.Tuple{one.In, between, one.Out} {
				if policies[i].Matches(t.Source, t.Destination, t.Protocol) {
					return &policies[i]
				}
			}
		}
	}
	return nil
}

// mostPolicies is how many policies are described in the status.
const mostPolicies = 5

func describe(policies []node.XFRMPolicy) (all []string) {
	for i := range policies[:min(len(policies), mostPolicies)] {
		all = append(all, policies[i].String())
	}
	if more := len(policies) - mostPolicies; more > 0 {
		all = append(all, fmt.Sprintf("and %d more XFRM policies", more))
	}
	return all
}
