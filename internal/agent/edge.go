// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/service"
)

func (c *Config) addEdgeFlags(fs *pflag.FlagSet) {
	t := edge.DefaultTimeouts
	fs.StringVar(&c.edgeMode, "edge-mode", string(edge.Auto), "how clients outside of the cluster are served, at the devices that they are behind: xdp (native, in the driver), tc, auto (xdp where the driver has it), off")
	fs.BoolVar(&c.Edge.Generic, "edge-xdp-generic", false, "use XDP where no driver has it; for tests: it is slower than tc")
	fs.BoolVar(&c.dispatcher, "edge-xdp-dispatcher", false, "run Beeline's XDP program in a dispatcher of libxdp's protocol from the start, so that xdp-loader and the like can add others to the device later; a dispatcher that is there is joined in any case")
	fs.StringSliceVar(&c.Edge.Devices, "devices", nil, "names or shell patterns of the devices that clients outside of the cluster are behind (default: those with a default route or with an address of the Node); those that lead to backends on other nodes are served with them")
	fs.BoolVar(&c.Edge.SetSysctls, "set-sysctls", false, "set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1 where they are 0 and Services have backends of that family: without them no client from outside reaches these")
	fs.Uint32Var(&c.icmpRate, "icmp-rate", 1000, "how many ICMP errors each CPU sends to clients in a second, such as port unreachable for a refused datagram; as many again for \"too big\"; 0 for no bound")
	fs.StringSliceVar(&c.snatPorts, "snat-ports", nil, "at most two ranges of ports under which the node speaks for clients whose backend is on another node (default: the largest that neither ip_local_port_range nor NodePorts use)")
	fs.StringSliceVar(&c.podNetworks, "pod-networks", nil, "networks of pods, which are no clients from outside (default: the podCIDRs of all Nodes, and the addresses of Pods)")
	fs.DurationVar(&c.Edge.Timeouts.TCP, "flow-timeout-tcp", t.TCP, "how long a client's TCP connection is remembered on which nothing is sent")
	fs.DurationVar(&c.Edge.Timeouts.UDP, "flow-timeout-udp", t.UDP, "how long a client's UDP flow is remembered on which nothing is sent, once it has gone on for two seconds in both directions; 30s before")
}

// completeEdge checks what there is to say of the edge.
func (c *Config) completeEdge() (err error) {
	c.Edge.Mode = edge.Mode(c.edgeMode)
	if !slices.Contains(edge.Modes, c.edgeMode) {
		return fmt.Errorf("--edge-mode %q: one of %s", c.edgeMode, strings.Join(edge.Modes, ", "))
	}
	if c.Edge.Generic && (c.Edge.Mode == edge.TC || c.Edge.Mode == edge.Off) {
		return fmt.Errorf("--edge-xdp-generic has no effect with --edge-mode=%s: leave one of them out", c.edgeMode)
	}
	if c.dispatcher && (c.Edge.Mode == edge.TC || c.Edge.Mode == edge.Off) {
		return fmt.Errorf("--edge-xdp-dispatcher has no effect with --edge-mode=%s: leave one of them out", c.edgeMode)
	}
	if c.Edge.SetSysctls && c.Edge.Mode == edge.Off {
		return errors.New("--set-sysctls has no effect with --edge-mode=off: leave one of them out")
	}
	for _, p := range c.Edge.Devices {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fmt.Errorf("--devices %q: not a name or shell pattern", p)
		}
	}
	for _, t := range []struct {
		flag string
		time time.Duration
	}{{"flow-timeout-tcp", c.Edge.Timeouts.TCP}, {"flow-timeout-udp", c.Edge.Timeouts.UDP}} {
		if t.time < edge.LeastTimeout {
			return fmt.Errorf("--%s %v: at least %v, such as 30s or 8h: flows are timed in seconds, and with less each is over as soon as it has begun", t.flag, t.time, edge.LeastTimeout)
		}
		if t.time > datapath.MostTimeout {
			return fmt.Errorf("--%s %v: at most %v, such as 8h: the programs cannot tell a longer time from the past", t.flag, t.time, datapath.MostTimeout)
		}
	}
	if err := c.completePodNetworks(); err != nil {
		return err
	}
	return c.completeSNATPorts()
}

// shortestNetwork is the length of the shortest prefix of a network that may be that of
// pods or balancers: no private range is larger (RFC 1918, RFC 4193).
func shortestNetwork(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 8
	}
	return 7
}

// parseNetwork reads a network of either family; of IPv4 mapped into IPv6 it is one of
// IPv4. Host bits are cleared.
func parseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return p, err
	}
	if p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), max(p.Bits()-96, 0))
	}
	return p.Masked(), nil
}

// completePodNetworks refuses networks that have clients from everywhere among pods.
func (c *Config) completePodNetworks() error {
	for _, text := range c.podNetworks {
		p, err := parseNetwork(text)
		if err != nil {
			return fmt.Errorf("--pod-networks: %q is not a network such as 10.244.0.0/16", text)
		}
		if shortest := shortestNetwork(p); p.Bits() < shortest {
			return fmt.Errorf("--pod-networks %s: clients outside of the cluster would count as pods, and meet neither externalTrafficPolicy nor what else holds for them: "+
				"name the networks that pods have their addresses from, such as 10.244.0.0/16 (a prefix of /%d or longer)", p, shortest)
		}
		c.Service.PodNetworks = append(c.Service.PodNetworks, p)
	}
	return nil
}

// completeSNATPorts takes the ports that are named, or those that are free. Where none
// are, and nobody insists on an edge, there is none: all else works.
func (c *Config) completeSNATPorts() (err error) {
	if len(c.snatPorts) > 0 {
		if c.SNATPorts, err = edge.ParsePorts(c.snatPorts); err != nil {
			return fmt.Errorf("--snat-ports %s: %w", strings.Join(c.snatPorts, ","), err)
		}
	}
	if c.Edge.Mode == edge.Off {
		return nil
	}
	local, err := edge.LocalPorts()
	if err != nil {
		return fmt.Errorf("--snat-ports: %w", err)
	}
	if len(c.snatPorts) > 0 {
		return edge.CheckPorts(c.SNATPorts, local)
	}
	c.SNATPorts = edge.FreePorts(local)
	if len(c.SNATPorts) > 0 {
		return nil
	}
	problem := fmt.Sprintf("the node's own connections use all ports (net.ipv4.ip_local_port_range is %s), and clients from outside need some: "+
		"narrow that range, or serve none (--edge-mode=off)", local)
	if c.Edge.Mode != edge.Auto {
		return errors.New(problem)
	}
	c.Edge.Mode, c.noEdge = edge.Off, "clients from outside are not served: "+problem
	return nil
}

// edgeOptions are nil if there is no edge.
func (c *Config) edgeOptions() *datapath.EdgeOptions {
	if c.Edge.Mode == edge.Off {
		return nil
	}
	return &datapath.EdgeOptions{SNATPorts: c.SNATPorts, Timeouts: c.Edge.Timeouts.Datapath(), ICMPRate: &c.icmpRate, Dispatcher: c.dispatcher, AcceptDSR: c.dsrAccept != acceptNever, LateXDP: !edge.MayEnterXDP(c.Edge)}
}

// podsByPacket is where the pods of this node are that the edge has to meet at their
// own devices: those that have opted out of the socket shortcut; and all, if sources
// are admitted to an address of the node, for a socket of a pod has no source yet.
func (a *Agent) podsByPacket() []netip.Prefix {
	if a.table.RestrictsOwnAddress() {
		return a.table.PodNetworks()
	}
	var all []netip.Prefix
	for _, pod := range a.optOuts.Pods() {
		for _, ip := range pod.IPs {
			if ip.IsValid() {
				all = append(all, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	return all
}

// newEdge is nil if there is none.
func (a *Agent) newEdge() *edge.Edge {
	if a.config.Edge.Mode == edge.Off {
		return nil
	}
	config := a.config.Edge
	config.Serves, config.Backends, config.Log = a.serves, a.syncer.Elsewhere, a.log
	config.Contested = a.contested
	config.Admit = a.syncer.Admit
	config.DSR = a.syncer.DSRDestinations
	config.Counters = func() (map[string]uint64, error) { return datapath.ReadEdgeCounters(a.config.BPFFS) }
	return edge.New(a.datapath, config)
}

// contested has package sync look on at a sweep of flows: slots of Maglev tables for which
// no record is needed any more.
func (a *Agent) contested() (note func(datapath.Tuple, *datapath.Track), settle func() error) {
	sweep := a.syncer.BeginSweep()
	if sweep == nil {
		return nil, nil
	}
	return sweep.Note, func() error { return a.syncer.EndSweep(sweep, a.idleTime) }
}

// idleTime is how long a flow of a protocol is remembered on which nothing is sent.
func (a *Agent) idleTime(p service.Protocol) time.Duration {
	return a.config.Edge.Timeouts.Idle(uint8(p))
}

// forwards are the families of a change's backends that are not this node itself.
func (a *Agent) forwards(d service.Delta) (families []service.Family) {
	for _, plan := range d.Plans {
		if plan == nil {
			continue
		}
		for _, set := range plan.Sets {
			if slices.Contains(families, set.Key.Family) {
				continue
			}
			if slices.ContainsFunc(set.Backends, func(b service.Backend) bool { return !slices.Contains(a.addresses, b.Addr.Addr()) }) {
				families = append(families, set.Key.Family)
			}
		}
	}
	return families
}

// elsewhere are the addresses of a change's backends on other nodes, and of these nodes.
func elsewhere(d service.Delta) (all []netip.Addr) {
	for _, plan := range d.Plans {
		if plan == nil {
			continue
		}
		for _, set := range plan.Sets {
			for _, b := range set.Backends {
				if !b.Local {
					all = append(all, b.Addr.Addr())
					if b.Node.IsValid() {
						all = append(all, b.Node)
					}
				}
			}
		}
	}
	return all
}
