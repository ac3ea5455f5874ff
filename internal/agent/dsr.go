// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/service"
)

// Values of --dsr-accept.
const (
	acceptInUse  = "auto"
	acceptAlways = "true"
	acceptNever  = "false"
)

func (c *Config) addDSRFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.dsr, "dsr", string(service.DSROff), "how packets of clients outside get to backends on other nodes, for Services without the annotation "+service.AnnotationDSR+": off (in this node's name, and the answer comes back here), or with the client's address, so that the backend's node answers the client itself: ipip, geneve, opt")
	fs.BoolVar(&c.Service.DSRHybrid, "dsr-hybrid", false, "only TCP goes by DSR, for Services without the annotation "+service.AnnotationDSRHybrid)
	fs.StringSliceVar(&c.dsrBalancers, "dsr-balancers", nil, "networks of balancers that are no nodes of the cluster, and that may send packets by DSR to this node's backends (nodes may in any case)")
	fs.StringVar(&c.dsrAccept, "dsr-accept", acceptInUse, "whether what the cluster's nodes and other balancers have encapsulated for backends of this node is opened, whose answers go straight to the clients: auto (with --dsr, with --dsr-balancers, and while a Service has DSR), true, false")
	fs.Lookup("dsr-accept").NoOptDefVal = acceptAlways
}

// completeDSR checks what there is to say of DSR.
func (c *Config) completeDSR() error {
	if !slices.Contains(service.DSRs, c.dsr) {
		return fmt.Errorf("--dsr %q: one of %s", c.dsr, strings.Join(service.DSRs, ", "))
	}
	c.Service.DSR = service.DSR(c.dsr)
	switch c.dsrAccept { // as a file has them
	case "on":
		c.dsrAccept = acceptAlways
	case "off":
		c.dsrAccept = acceptNever
	}
	if !slices.Contains([]string{acceptInUse, acceptAlways, acceptNever}, c.dsrAccept) {
		return fmt.Errorf("--dsr-accept %q: one of auto, true, false", c.dsrAccept)
	}
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
		{"--dsr-accept=true", c.dsrAccept == acceptAlways},
	} {
		if flag.set {
			return fmt.Errorf("%s has no effect with --edge-mode=off: leave one of them out", flag.text)
		}
	}
	return nil
}

// acceptsTunnels says why IPIP and Geneve of balancers are opened whatever Services have; empty:
// they are not.
func (c *Config) acceptsTunnels() string {
	switch {
	case c.Edge.Mode == edge.Off || c.dsrAccept == acceptNever:
		return ""
	case c.dsrAccept == acceptAlways:
		return "--dsr-accept=true"
	case c.Service.DSR != service.DSROff:
		return "--dsr=" + c.dsr
	case len(c.Service.Balancers) > 0:
		return "--dsr-balancers"
	}
	return ""
}

// dsrAccepted is what status says of packets of balancers; nil where there is no edge.
func (a *Agent) dsrAccepted(services int) *observe.DSRAccepted {
	if a.config.Edge.Mode == edge.Off {
		return nil
	}
	if a.config.dsrAccept == acceptNever {
		return &observe.DSRAccepted{Why: "--dsr-accept=false"}
	}
	var accepted observe.DSRAccepted
	accepted.Tunnels, accepted.Option = a.syncer.Accepted()
	switch always := a.config.acceptsTunnels(); {
	case always != "":
		accepted.Why = always
	case services > 0:
		accepted.Why = "Services here have DSR"
	case accepted.Tunnels:
		accepted.Why = "Services here have had DSR, and there may be flows yet that go by it"
	default:
		accepted.Why = "no Service here has DSR"
	}
	return &accepted
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
