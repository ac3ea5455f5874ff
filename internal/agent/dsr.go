// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/service"
)

func (c *Config) addDSRFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.dsr, "dsr", string(service.DSROff), "how packets of clients outside get to backends on other nodes, for Services without the annotation "+service.AnnotationDSR+": off (in this node's name, and the answer comes back here), or with the client's address, so that the backend's node answers the client itself: ipip, geneve, opt")
	fs.BoolVar(&c.Service.DSRHybrid, "dsr-hybrid", false, "only TCP goes by DSR, for Services without the annotation "+service.AnnotationDSRHybrid)
	fs.StringSliceVar(&c.dsrBalancers, "dsr-balancers", nil, "networks of balancers that are no nodes of the cluster, and that may send packets by DSR to this node's backends (nodes may in any case)")
}

// completeDSR checks what there is to say of DSR.
func (c *Config) completeDSR() error {
	if !slices.Contains(service.DSRs, c.dsr) {
		return fmt.Errorf("--dsr %q: one of %s", c.dsr, strings.Join(service.DSRs, ", "))
	}
	c.Service.DSR = service.DSR(c.dsr)
	for _, text := range c.dsrBalancers {
		p, err := parseNetwork(text)
		if err != nil {
			return fmt.Errorf("--dsr-balancers: %q is not a network such as 192.0.2.0/24, or 192.0.2.7/32 for one balancer", text)
		}
		if shortest := shortestNetwork(p); p.Bits() < shortest {
			return fmt.Errorf("--dsr-balancers %s: who is there can speak to backends of this node in any client's name: "+
				"name the networks of the balancers alone (a prefix of /%d or longer)", p, shortest)
		}
		c.Service.Balancers = append(c.Service.Balancers, p)
	}
	if c.edgeMode != string(edge.Off) {
		return nil
	}
	for _, flag := range []struct {
		text string
		set  bool
	}{
		{"--dsr=" + c.dsr, c.Service.DSR != service.DSROff},
		{"--dsr-hybrid", c.Service.DSRHybrid},
		{"--dsr-balancers", len(c.dsrBalancers) > 0},
	} {
		if flag.set {
			return fmt.Errorf("%s has no effect with --edge-mode=off: leave one of them out", flag.text)
		}
	}
	return nil
}

// goesByDSR says whether a change has frontends with DSR.
func goesByDSR(d service.Delta) bool {
	for _, plan := range d.Plans {
		if plan != nil && slices.ContainsFunc(plan.Frontends, func(f service.Frontend) bool { return f.DSR != "" }) {
			return true
		}
	}
	return false
}
