// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/shortcut/offload/policy"
)

// config is the configuration of flow offload.
type config struct {
	devices       component.Devices
	provider      string
	threshold     uint32
	ignoreFilters bool
	networks      []string
	ports         []string
	protocols     []string
	notNetworks   []string
	notPorts      []string

	policy policy.Policy
	flags  *pflag.FlagSet
}

// defaultThreshold: flows of a few packets cost nothing.
const defaultThreshold = 20

func (c *config) addFlags(fs *pflag.FlagSet) {
	c.flags = fs
	fs.StringSliceVar((*[]string)(&c.devices), "offload-devices", []string{component.Off}, "devices between which packets of established flows that this node forwards skip its IP stack: off, auto (all that packets enter and leave by, except those of pods), or names and shell patterns")
	fs.StringVar(&c.provider, "offload-provider", string(Auto), "what forwards the flows: auto (the first of the following that works), flowtable-hardware (a flowtable of the kernel in the NICs, and in software where a driver has none), flowtable (in software), or cache (Beeline's flow cache)")
	fs.Uint32Var(&c.threshold, "offload-threshold", defaultThreshold, "packets of one direction of a flow that take the stack before flow offload takes the direction")
	fs.StringSliceVar(&c.networks, "offload-networks", nil, "networks with one end of each flow that flow offload takes, before or after NAT (default: all)")
	fs.StringSliceVar(&c.ports, "offload-ports", nil, "ports and ranges of ports, such as 8000-8999, with one end of each flow that flow offload takes, before or after NAT (default: all)")
	fs.StringSliceVar(&c.protocols, "offload-protocols", nil, "protocols of the flows that flow offload takes: tcp, udp (default: both)")
	fs.StringSliceVar(&c.notNetworks, "offload-exclude-networks", nil, "networks whose flows flow offload leaves to the stack, whatever their other end")
	fs.StringSliceVar(&c.notPorts, "offload-exclude-ports", nil, "ports and ranges of ports whose flows flow offload leaves to the stack, whatever their other end")
	fs.BoolVar(&c.ignoreFilters, "offload-ignore-filters", false, "take flows even where rules of packet filters count, limit, mark, log or change their packets; these rules then see only the first packets of a flow")
}

// enabled reports whether the flags ask for flow offload.
func (c *config) enabled() bool { return c.devices.Enabled() }

func (c *config) complete(*service.Config) error {
	if len(c.devices) == 0 {
		return fmt.Errorf("--offload-devices is empty: give %s, %s, or names and shell patterns of devices", component.Auto, component.Off)
	}
	if p, invalid := c.devices.Invalid(); invalid {
		return fmt.Errorf("--offload-devices %q: give %s, %s, or names and shell patterns of devices", p, component.Auto, component.Off)
	}
	if !slices.Contains([]Provider{Auto, Hardware, Flowtable, Cache}, Provider(c.provider)) {
		return fmt.Errorf("--offload-provider %q: give %s, %s, %s or %s", c.provider, Auto, Hardware, Flowtable, Cache)
	}
	if c.threshold == 0 {
		return errors.New("--offload-threshold 0: at least 1, because flow offload learns from packets that the stack has forwarded")
	}
	if err := errors.Join(c.checkEnabled(), c.checkCacheSize()); err != nil {
		return err
	}
	return c.completePolicy()
}

// checkEnabled refuses flags without effect.
func (c *config) checkEnabled() error {
	if c.enabled() {
		return nil
	}
	var errs []error
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"provider", c.provider != string(Auto)}, {"threshold", c.threshold != defaultThreshold}, {"ignore-filters", c.ignoreFilters},
		{"networks", len(c.networks) > 0}, {"ports", len(c.ports) > 0}, {"protocols", len(c.protocols) > 0},
		{"exclude-networks", len(c.notNetworks) > 0}, {"exclude-ports", len(c.notPorts) > 0}, {"max-flows", c.sized()},
	} {
		if flag.given {
			errs = append(errs, fmt.Errorf("--offload-%s has no effect with --offload-devices=off: remove it, or name the devices", flag.name))
		}
	}
	return errors.Join(errs...)
}

// sized reports whether the flow cache has another size than by default.
func (c *config) sized() bool {
	f := c.flags.Lookup("offload-max-flows") // a limit of a table: package bpf defines it
	return f != nil && f.Value.String() != f.DefValue
}

// checkCacheSize refuses a size of the flow cache if the provider is another.
func (c *config) checkCacheSize() error {
	p := Provider(c.provider)
	if !c.sized() || p != Flowtable && p != Hardware {
		return nil
	}
	return fmt.Errorf("--offload-max-flows has no effect with --offload-provider=%s: remove it, or have %s or %s forward the flows", p, Auto, Cache)
}

func (c *config) completePolicy() error {
	p := &c.policy
	return errors.Join(
		parseAll("offload-networks", c.networks, parseNetwork, &p.Networks),
		parseAll("offload-exclude-networks", c.notNetworks, parseNetwork, &p.ExcludeNetworks),
		parseAll("offload-ports", c.ports, parsePorts, &p.Ports),
		parseAll("offload-exclude-ports", c.notPorts, parsePorts, &p.ExcludePorts),
		parseAll("offload-protocols", c.protocols, parseProtocol, &p.Protocols),
	)
}

// parseAll parses the values of a flag.
func parseAll[T any](flag string, texts []string, parse func(string) (T, error), all *[]T) error {
	for _, text := range texts {
		one, err := parse(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
		*all = append(*all, one)
	}
	return nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	p, err := component.ParseNetwork(text)
	if err != nil {
		return p, fmt.Errorf("%q is not a network such as 192.0.2.0/24, or 192.0.2.7/32 for one address", text)
	}
	return p, nil
}

func parsePorts(text string) (bpf.PortRange, error) {
	r, err := bpf.ParsePortRange(text)
	if err != nil || r.First == 0 || r.First > r.Last {
		return r, fmt.Errorf("%q is neither a port nor a range of ports such as 8000-8999", text)
	}
	return r, nil
}

func parseProtocol(text string) (uint8, error) {
	switch strings.ToLower(text) {
	case "tcp":
		return unix.IPPROTO_TCP, nil
	case "udp":
		return unix.IPPROTO_UDP, nil
	}
	return 0, fmt.Errorf("%q is neither tcp nor udp: all others take the stack", text)
}
