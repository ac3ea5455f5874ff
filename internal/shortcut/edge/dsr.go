// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
)

// Values of --dsr-accept.
const (
	acceptInUse  = "auto"
	acceptAlways = "true"
	acceptNever  = "false"
)

func (c *config) addDSRFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.dsr, "dsr", string(service.DSROff), "how to forward packets of clients outside the cluster to backends on other nodes, for Services without the annotation "+service.AnnotationDSR+": off (with SNAT to this node's address; replies return through this node), or with the client's address preserved, so that the backend's node answers the client directly: ipip, geneve, opt")
	fs.BoolVar(&c.dsrHybrid, "dsr-hybrid", false, "use DSR only for TCP, for Services without the annotation "+service.AnnotationDSRHybrid)
	fs.StringSliceVar(&c.dsrBalancers, "dsr-balancers", nil, "networks of balancers outside the cluster that may send packets by DSR to this node's backends (nodes of the cluster always may)")
	fs.StringVar(&c.dsrAccept, "dsr-accept", acceptInUse, "decapsulate packets that nodes of the cluster and other balancers send by DSR to backends of this node: auto (with --dsr, with --dsr-balancers, and while a Service has DSR), true, false")
	fs.Lookup("dsr-accept").NoOptDefVal = acceptAlways
}

// completeDSR validates the DSR settings.
func (c *config) completeDSR(services *service.Config) error {
	if !slices.Contains(service.DSRs, c.dsr) {
		return fmt.Errorf("--dsr %q: one of %s", c.dsr, strings.Join(service.DSRs, ", "))
	}
	services.DSR, services.DSRHybrid = service.DSR(c.dsr), c.dsrHybrid
	switch c.dsrAccept { // as in a configuration file
	case "on":
		c.dsrAccept = acceptAlways
	case "off":
		c.dsrAccept = acceptNever
	}
	if !slices.Contains([]string{acceptInUse, acceptAlways, acceptNever}, c.dsrAccept) {
		return fmt.Errorf("--dsr-accept %q: one of auto, true, false", c.dsrAccept)
	}
	for _, text := range c.dsrBalancers {
		p, err := component.ParseNetwork(text)
		if err != nil {
			return fmt.Errorf("--dsr-balancers: %q is not a network such as 192.0.2.0/24, or 192.0.2.7/32 for one balancer", text)
		}
		if shortest := shortestNetwork(p); p.Bits() < shortest {
			return fmt.Errorf("--dsr-balancers %s: hosts there can send packets to backends of this node with any client's address: "+
				"give only the networks of the balancers (a prefix of /%d or longer)", p, shortest)
		}
		services.Balancers = append(services.Balancers, p)
	}
	if c.mode != string(Off) {
		return nil
	}
	for _, flag := range []struct {
		text string
		set  bool
	}{
		{"--dsr=" + c.dsr, c.dsr != string(service.DSROff)},
		{"--dsr-hybrid", c.dsrHybrid},
		{"--dsr-balancers", len(c.dsrBalancers) > 0},
		{"--dsr-accept=true", c.dsrAccept == acceptAlways},
	} {
		if flag.set {
			return fmt.Errorf("%s has no effect with --edge-mode=off: remove one of them", flag.text)
		}
	}
	return nil
}

// acceptsTunnels returns why IPIP and Geneve packets of balancers are decapsulated regardless of Services;
// empty if they are not.
func (c *config) acceptsTunnels() string {
	switch {
	case c.edge.Mode == Off || c.dsrAccept == acceptNever:
		return ""
	case c.dsrAccept == acceptAlways:
		return "--dsr-accept=true"
	case c.dsr != string(service.DSROff):
		return "--dsr=" + c.dsr
	case len(c.dsrBalancers) > 0:
		return "--dsr-balancers"
	}
	return ""
}

// dsrAccepted returns the status of packets from balancers.
func (c *config) dsrAccepted(tunnels, option bool, services int) *api.DSRAccepted {
	if c.dsrAccept == acceptNever {
		return &api.DSRAccepted{Why: "--dsr-accept=false"}
	}
	accepted := api.DSRAccepted{Tunnels: tunnels, IPOption: option}
	switch always := c.acceptsTunnels(); {
	case always != "":
		accepted.Why = always
	case services > 0:
		accepted.Why = "Services here have DSR"
	case accepted.Tunnels:
		accepted.Why = "Services here had DSR, and flows that use it may remain"
	default:
		accepted.Why = "no Service here has DSR"
	}
	return &accepted
}

// goesByDSR reports whether a change has frontends with DSR.
func goesByDSR(d service.Delta) bool {
	for _, plan := range d.Plans {
		if plan != nil && slices.ContainsFunc(plan.Frontends, func(f service.Frontend) bool { return f.DSR != "" }) {
			return true
		}
	}
	return false
}
