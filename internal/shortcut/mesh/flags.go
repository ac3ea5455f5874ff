// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/sidecar"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
)

// config is the configuration of the sidecar shortcut.
type config struct {
	// cgroups are directories of cgroup v2, each of a pod: the application and the proxy are in it or below it.
	// They may come and go.
	cgroups                    []string
	pods                       string          // a label selector
	selector                   labels.Selector // of pods; nil: none
	podCgroups                 func() []string // the socket shortcut's --pod-cgroups
	excludeOutbound, excludeIn []string        // ports
	excludeNetworks            []string
	hostStack                  string
	options                    Options
	defaults                   Defaults
	datapath                   *Datapath
}

// The ports and the user of Istio's proxies.
const (
	defaultOutboundPort = 15001
	defaultInboundPort  = 15006
	defaultProxyUser    = 1337
)

func (c *config) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.cgroups, "mesh-cgroups", nil, "directories of cgroup v2 of pods whose TCP connections go through a proxy in the pod, instead of by netfilter's REDIRECT; they may be created later")
	fs.StringVar(&c.pods, "mesh-pods", "", "label selector of the node's pods whose TCP connections go through a proxy in the pod, as their annotations of Istio say (security.istio.io/tlsMode: all that have Istio's proxy)")
	fs.Uint16Var(&c.options.DNSPort, "mesh-dns-port", 0, "port on loopback at which proxies answer DNS: queries of applications go there (Istio's proxies: 15053, if they have ISTIO_META_DNS_CAPTURE); 0 for not")
	fs.BoolVar(&c.defaults.AllNameServers, "mesh-dns-capture-all", false, "with --mesh-dns-port, queries to all name servers go to the proxies, not only those to the servers of the pod's /etc/resolv.conf")
	c.podCgroups = func() []string { all, _ := fs.GetStringSlice("pod-cgroups"); return all }
	fs.Uint16Var(&c.options.OutboundPort, "mesh-outbound-port", defaultOutboundPort, "port on loopback at which the proxies take connections of their applications")
	fs.Uint16Var(&c.options.InboundPort, "mesh-inbound-port", defaultInboundPort, "port at which the proxies take connections from other hosts to their pods")
	fs.Uint32Var(&c.options.ProxyUID, "mesh-proxy-uid", defaultProxyUser, "user ID of the proxies: connections of its processes are not redirected")
	fs.Uint32Var(&c.options.ProxyGID, "mesh-proxy-gid", defaultProxyUser, "group ID of the proxies: connections of processes with this primary group are not redirected")
	fs.StringSliceVar(&c.excludeOutbound, "mesh-exclude-outbound-ports", nil, "with --mesh-cgroups or --mesh-pods, ports to which applications connect without the proxy")
	fs.StringSliceVar(&c.excludeNetworks, "mesh-exclude-outbound-networks", nil, "with --mesh-cgroups or --mesh-pods, networks (CIDR) to which applications connect without the proxy")
	fs.StringSliceVar(&c.defaults.ExcludeInterfaces, "mesh-exclude-interfaces", nil, "with --mesh-cgroups or --mesh-pods, devices of pods, for example net1, or vnet+ for all whose name begins with vnet: what leaves or arrives by them does not go to the proxy")
	fs.StringSliceVar(&c.defaults.RerouteInterfaces, "mesh-reroute-interfaces", nil, "with --mesh-cgroups or --mesh-pods, devices of pods behind which virtual machines are, for example k6t-eth0, or vnet+ for all whose name begins with vnet: the machines' TCP connections go to the proxy")
	fs.StringSliceVar(&c.excludeIn, "mesh-exclude-inbound-ports", nil, "with --mesh-cgroups or --mesh-pods, ports of pods that other hosts reach without the proxy")
	fs.BoolVar(&c.options.Sockmap, "mesh-sockmap", false, "with --mesh-cgroups or --mesh-pods, let messages between applications and proxies skip TCP; read docs/operate/mesh.md before, which names the programs that it may break")
	fs.StringVar(&c.hostStack, "mesh-hoststack", string(hoststack.ModeIgnore), "with --mesh-cgroups or --mesh-pods, programs of pods that have the host stack's library: ignore does not look at them, on lists and counts their connections, off keeps all their connections on the kernel, also those that use rings now")
}

func (c *config) hostStackMode() hoststack.Mode { return hoststack.Mode(c.hostStack) }

func (c *config) enabled() bool { return len(c.cgroups) > 0 || c.pods != "" }

func (c *config) complete(*service.Config) (err error) {
	for _, directory := range c.cgroups {
		if !filepath.IsAbs(directory) {
			return fmt.Errorf("--mesh-cgroups %q: give the absolute path of a cgroup v2 directory", directory)
		}
	}
	if c.options.OutboundPort == 0 || c.options.InboundPort == 0 || c.options.OutboundPort == c.options.InboundPort || c.options.DNSPort == c.options.OutboundPort || c.options.DNSPort == c.options.InboundPort {
		return fmt.Errorf("--mesh-outbound-port %d, --mesh-inbound-port %d and --mesh-dns-port %d: give different ports of the proxy", c.options.OutboundPort, c.options.InboundPort, c.options.DNSPort)
	}
	if c.pods != "" {
		if c.selector, err = labels.Parse(c.pods); err != nil {
			return fmt.Errorf("--mesh-pods %q: not a label selector such as app=web or security.istio.io/tlsMode: %w", c.pods, err)
		}
	}
	if len(c.cgroups) > 0 && c.options.ProxyUID == 0 && c.options.ProxyGID == 0 {
		return fmt.Errorf("--mesh-proxy-uid=0 --mesh-proxy-gid=0 do not tell proxies from applications, which run as root, too: start the proxies with a user or a primary group of their own, and name it")
	}
	c.defaults.ProxyUID, c.defaults.ProxyGID, c.defaults.DNS = c.options.ProxyUID, c.options.ProxyGID, c.options.DNSPort != 0
	if c.defaults.AllNameServers && c.options.DNSPort == 0 {
		return fmt.Errorf("--mesh-dns-capture-all has no effect without --mesh-dns-port: remove it, or name the port")
	}
	if c.defaults.ExcludeOutboundPorts, err = ports("mesh-exclude-outbound-ports", c.excludeOutbound); err != nil {
		return err
	}
	if c.defaults.ExcludeInboundPorts, err = ports("mesh-exclude-inbound-ports", c.excludeIn); err != nil {
		return err
	}
	for _, text := range c.excludeNetworks {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return fmt.Errorf("--mesh-exclude-outbound-networks %q: give networks such as 10.0.0.0/8 or fd00::/8", text)
		}
		c.defaults.ExcludeOutbound = append(c.defaults.ExcludeOutbound, p.Masked())
	}
	for flag, names := range map[string][]string{"mesh-exclude-interfaces": c.defaults.ExcludeInterfaces, "mesh-reroute-interfaces": c.defaults.RerouteInterfaces} {
		for _, text := range names {
			if _, err := sidecar.ParseInterface(text); err != nil {
				return fmt.Errorf("--%s: %w", flag, err)
			}
		}
	}
	if (c.options.Sockmap || c.options.DNSPort != 0) && !c.enabled() {
		return fmt.Errorf("--mesh-sockmap and --mesh-dns-port have no effect without --mesh-cgroups or --mesh-pods: remove them")
	}
	if !slices.Contains(hoststack.Modes, c.hostStackMode()) {
		return fmt.Errorf("--mesh-hoststack %q: write ignore, on or off", c.hostStack)
	}
	if c.hostStackMode() != hoststack.ModeIgnore && !c.enabled() {
		return fmt.Errorf("--mesh-hoststack=%s has no effect without --mesh-cgroups or --mesh-pods: remove it, or name the pods", c.hostStack)
	}
	if !c.enabled() && (len(c.excludeOutbound) > 0 || len(c.excludeIn) > 0 || len(c.excludeNetworks) > 0 || len(c.defaults.ExcludeInterfaces) > 0 || len(c.defaults.RerouteInterfaces) > 0) {
		return fmt.Errorf("--mesh-exclude-outbound-ports, --mesh-exclude-outbound-networks, --mesh-exclude-inbound-ports, --mesh-exclude-interfaces and --mesh-reroute-interfaces have no effect without --mesh-cgroups or --mesh-pods: remove them")
	}
	return nil
}

func ports(flag string, texts []string) (all []uint16, err error) {
	for _, text := range texts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("--%s %q: give ports from 1 to 65535", flag, text)
		}
		all = append(all, uint16(port))
	}
	return all, nil
}

func (c *config) setOptions(*bpf.Options) {
	if c.enabled() {
		c.datapath.Options = &c.options
	}
}
