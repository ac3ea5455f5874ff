// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/conntrack"
)

// config is the edge's configuration.
type config struct {
	edge     Config
	timeouts conntrack.Timeouts
	ports    []bpf.PortRange
	// noEdge is why there is no edge although --edge-mode asks for one.
	noEdge string

	mode         string
	snatPorts    []string
	icmpRate     uint32
	dispatcher   bool // bpf.NewEdgeKernel
	podNetworks  []string
	dsr          string
	dsrHybrid    bool
	dsrBalancers []string
	dsrAccept    string

	metricsBackends bool // count flows by backend
}

// addFlags defines the flags and their defaults.
func (c *config) addFlags(fs *pflag.FlagSet) {
	c.timeouts = conntrack.DefaultTimeouts
	c.timeouts.AddFlags(fs)
	fs.StringVar(&c.mode, "edge-mode", string(Auto), "how to serve clients outside the cluster, at the devices that lead to them: xdp (native, in the driver), tc, auto (xdp if the driver supports it), off")
	fs.BoolVar(&c.edge.Generic, "edge-xdp-generic", false, "use generic XDP if the driver has no XDP; for tests: it is slower than tc")
	fs.BoolVar(&c.dispatcher, "edge-xdp-dispatcher", false, "run Beeline's XDP program in a dispatcher of libxdp's protocol from the start, so that xdp-loader and similar tools can add other programs to the device later; an existing dispatcher is always joined")
	fs.StringSliceVar(&c.edge.Devices, "devices", nil, "names or shell patterns of the devices that lead to clients outside the cluster (default: devices with a default route or with an address of the Node); devices that lead to backends on other nodes are always added")
	fs.BoolVar(&c.edge.SetSysctls, "set-sysctls", false, "set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1 if they are 0 and Services have backends of that family; without forwarding no client outside the cluster reaches these")
	fs.Uint32Var(&c.icmpRate, "icmp-rate", 1000, "maximum number of ICMP errors per second and CPU sent to clients, such as port unreachable for a rejected datagram; \"too big\" has a separate limit of the same size; 0 for no limit")
	fs.StringSliceVar(&c.snatPorts, "snat-ports", nil, "at most two ranges of SNAT ports, the source ports of forwarded packets to backends on other nodes (default: the two largest ranges that neither ip_local_port_range nor NodePorts use)")
	fs.StringSliceVar(&c.podNetworks, "pod-networks", nil, "pod networks; clients there do not count as outside the cluster (default: the podCIDRs of all Nodes, and the addresses of Pods)")
	fs.BoolVar(&c.metricsBackends, "edge-stats-per-backend", false, "also count the tracked flows of each backend, in /metrics")
	c.addDSRFlags(fs)
}

// complete validates the settings of the edge and of DSR.
func (c *config) complete(services *service.Config) error {
	if err := c.completeEdge(services); err != nil {
		return err
	}
	services.Edge = c.edge.Mode != Off
	return c.completeDSR(services)
}

// completeEdge validates the edge's settings.
func (c *config) completeEdge(services *service.Config) error {
	c.edge.Mode = Mode(c.mode)
	if !slices.Contains(Modes, c.mode) {
		return fmt.Errorf("--edge-mode %q: one of %s", c.mode, strings.Join(Modes, ", "))
	}
	if c.edge.Generic && (c.edge.Mode == TC || c.edge.Mode == Off) {
		return fmt.Errorf("--edge-xdp-generic has no effect with --edge-mode=%s: remove one of them", c.mode)
	}
	if c.dispatcher && (c.edge.Mode == TC || c.edge.Mode == Off) {
		return fmt.Errorf("--edge-xdp-dispatcher has no effect with --edge-mode=%s: remove one of them", c.mode)
	}
	if c.edge.SetSysctls && c.edge.Mode == Off {
		return errors.New("--set-sysctls has no effect with --edge-mode=off: remove one of them")
	}
	if services.MasqueradeAll && c.edge.Mode == Off {
		return errors.New("--masquerade-all has no effect with --edge-mode=off: remove one of them")
	}
	for _, p := range c.edge.Devices {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fmt.Errorf("--devices %q: not a name or shell pattern", p)
		}
	}
	if err := c.timeouts.Check(); err != nil {
		return err
	}
	if err := c.completePodNetworks(services); err != nil {
		return err
	}
	return c.completeSNATPorts()
}

// effective has the chosen SNAT ports, and whether there is an edge.
func (c *config) effective(settings map[string]any) {
	settings["edge-mode"] = string(c.edge.Mode)
	ranges := []string{}
	for _, r := range c.ports {
		ranges = append(ranges, r.String())
	}
	settings["snat-ports"] = ranges
}

// shortestNetwork is the shortest allowed prefix length of a pod or balancer network. No private range is
// larger (RFC 1918, RFC 4193).
func shortestNetwork(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 8
	}
	return 7
}

// completePodNetworks rejects networks so large that clients outside the cluster would count as pods.
func (c *config) completePodNetworks(services *service.Config) error {
	for _, text := range c.podNetworks {
		p, err := component.ParseNetwork(text)
		if err != nil {
			return fmt.Errorf("--pod-networks: %q is not a network such as 10.244.0.0/16", text)
		}
		if shortest := shortestNetwork(p); p.Bits() < shortest {
			return fmt.Errorf("--pod-networks %s: clients outside the cluster would count as pods, and bypass externalTrafficPolicy and loadBalancerSourceRanges: "+
				"give only the networks of pod addresses, such as 10.244.0.0/16 (a prefix of /%d or longer)", p, shortest)
		}
		services.PodNetworks = append(services.PodNetworks, p)
	}
	return nil
}

// completeSNATPorts selects the configured ports, or free ones. If none are free and --edge-mode is auto, it
// turns the edge off; all else works.
func (c *config) completeSNATPorts() (err error) {
	if len(c.snatPorts) > 0 {
		if c.ports, err = conntrack.ParseSNATPorts(c.snatPorts); err != nil {
			return fmt.Errorf("--snat-ports %s: %w", strings.Join(c.snatPorts, ","), err)
		}
	}
	if c.edge.Mode == Off {
		return nil
	}
	local, err := conntrack.LocalPorts()
	if err != nil {
		return fmt.Errorf("--snat-ports: %w", err)
	}
	if len(c.snatPorts) > 0 {
		return conntrack.CheckSNATPorts(c.ports, local)
	}
	c.ports = conntrack.FreeSNATPorts(local)
	if len(c.ports) > 0 {
		return nil
	}
	problem := fmt.Sprintf("the node's own connections use all ports (net.ipv4.ip_local_port_range is %s), and clients outside the cluster need some: "+
		"narrow that range, or set --edge-mode=off", local)
	if c.edge.Mode != Auto {
		return errors.New(problem)
	}
	c.edge.Mode, c.noEdge = Off, "clients outside the cluster are not served: "+problem
	return nil
}
