// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// What else than rules has functions at the hooks of netfilter. Kernels with nfnetlink_hook (Linux 5.14,
// CONFIG_NETFILTER_NETLINK_HOOK) list these functions by network namespace: one that is not known here may drop
// packets. Without it, at least the links of BPF programs (BPF_PROG_TYPE_NETFILTER, Linux 6.4) are listed by their
// IDs. The kernel does not say in which network namespace such a link is, so each counts.

// A hookFunction is a table of one rule, which may have any effect.
type hookFunction struct{ what string }

// rules implements table.
func (h *hookFunction) rules(string) ([]rule, error) {
	return []rule{{steps: []step{effect{what: "what it does is not known", marks: marksAny, marksConnection: true, unknown: true}}}}, nil
}

// title implements table.
func (h *hookFunction) title(string, string) string { return h.what }

// hookNames are for the operator.
var hookNames = map[hook]string{
	ingress: "ingress", bridgeInput: "input", prerouting: "prerouting", forward: "forward", bridgeOutput: "output", postrouting: "postrouting", egress: "egress",
}

// programs lists BPF programs at the hooks of netfilter.
type programs struct {
	last  ebpflink.ID          // of the links that were looked at
	links map[ebpflink.ID]base // those of netfilter
}

// read returns the links of BPF programs at hooks that forwarded packets meet. The kernel does not use the ID of a link
// again soon, so it looks only at new ones.
func (p *programs) read() (all []base, err error) {
	for range linkAttempts {
		if err = p.look(); !errors.Is(err, unix.EAGAIN) { // a link that is being made
			break
		}
	}
	if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EAGAIN) {
		return nil, fmt.Errorf("list the links of BPF programs: %w", err)
	}
	for id, b := range p.links {
		l, err := ebpflink.NewFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			delete(p.links, id)
			continue
		}
		if err == nil {
			l.Close()
		}
		all = append(all, b)
	}
	return all, nil
}

const linkAttempts = 3

// look looks at new links.
func (p *programs) look() error {
	it := ebpflink.Iterator{ID: p.last}
	for it.Next() {
		p.last = it.ID
		info, err := it.Link.Info()
		if err != nil || info.Netfilter() == nil {
			continue // a kind of link that the library does not know, or it is gone
		}
		n := info.Netfilter()
		h, ok := hooks[uint8(n.ProtocolFamily)][uint32(n.Hook)]
		if !ok {
			continue
		}
		what := fmt.Sprintf("BPF program %s at %s of netfilter", programName(info.Program), hookNames[h])
		if p.links == nil {
			p.links = map[ebpflink.ID]base{}
		}
		p.links[it.ID] = base{table: &hookFunction{what}, family: uint8(n.ProtocolFamily), hook: h, priority: n.Priority}
	}
	return it.Err()
}

// programName names a program for the operator, such as "firewall, id 7".
func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprintf("id %d", id)
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		return fmt.Sprintf("%s, id %d", info.Name, id)
	}
	return fmt.Sprintf("id %d", id)
}

// knownFunctions are those of which the effect on forwarded packets is searched otherwise, or is none: they belong to
// conntrack, NAT, rules of nftables and iptables (whose tables are read), flowtables, bridges (that call the hooks of
// IP), IPVS and SYN proxies (of addresses that the node serves), and security modules, which label packets.
var knownFunctions = []string{
	"apparmor_ip_postroute", "br_nf_forward", "br_nf_forward_arp", "br_nf_forward_ip", "br_nf_local_in", "br_nf_post_routing", "br_nf_pre_routing",
	"ip6table_filter_hook", "ip6table_mangle_hook", "ip6table_nat_do_chain", "ip6table_raw_hook", "ip6table_security_hook", "ip6t_do_table",
	"ip_sabotage_in", "ip_vs_forward_icmp", "ip_vs_forward_icmp_v6", "ip_vs_in_hook", "ip_vs_out_hook", "ip_vs_reply4", "ip_vs_reply6",
	"ipt_do_table", "iptable_filter_hook", "iptable_mangle_hook", "iptable_nat_do_chain", "iptable_raw_hook", "iptable_security_hook",
	"ipv4_confirm", "ipv4_conntrack_defrag", "ipv4_conntrack_in", "ipv4_conntrack_local", "ipv4_helper", "ipv4_synproxy_hook",
	"ipv6_confirm", "ipv6_conntrack_in", "ipv6_conntrack_local", "ipv6_defrag", "ipv6_helper", "ipv6_synproxy_hook",
	"nf_confirm", "nf_ct_bridge_post", "nf_ct_bridge_pre", "nf_flow_offload_inet_hook", "nf_flow_offload_ip_hook", "nf_flow_offload_ipv6_hook",
	"nf_nat_ipv4_fn", "nf_nat_ipv4_out", "nf_nat_ipv4_pre_routing", "nf_nat_ipv6_fn", "nf_nat_ipv6_in", "nf_nat_ipv6_out",
	"nft_do_chain_bridge", "nft_do_chain_inet", "nft_do_chain_inet_ingress", "nft_do_chain_ipv4", "nft_do_chain_ipv6", "nft_do_chain_netdev", "nft_nat_do_chain",
	"selinux_ip_forward", "selinux_ip_postroute", "selinux_ipv4_forward", "selinux_ipv4_postroute", "selinux_ipv6_forward", "selinux_ipv6_postroute",
}

// Messages of nfnetlink_hook (linux/netfilter/nfnetlink_hook.h).
const (
	subsystemHook    = 12 // NFNL_SUBSYS_HOOK
	hookNumber       = 1  // NFNLA_HOOK_HOOKNUM
	hookPriority     = 2  // NFNLA_HOOK_PRIORITY
	hookFunctionName = 4  // NFNLA_HOOK_FUNCTION_NAME
	hookModuleName   = 5  // NFNLA_HOOK_MODULE_NAME
)

// errNoHooks: the kernel does not list the functions at the hooks.
var errNoHooks = errors.New("this kernel has no nfnetlink_hook (CONFIG_NETFILTER_NETLINK_HOOK)")

// readHooks returns the functions at hooks of this network namespace that are not known, except those at devices.
func readHooks() (all []base, err error) {
	c, err := newClient()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoHooks
	}
	if err != nil {
		return nil, fmt.Errorf("list the functions at hooks of netfilter: %w", err)
	}
	defer c.close()
	for _, family := range []uint8{familyIPv4, familyIPv6, familyBridge} {
		for number, h := range hooks[family] {
			found, err := readHook(c, family, number, h)
			if errors.Is(err, errNoHooks) && family != familyIPv4 { // a kernel without the family
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	slices.SortStableFunc(all, func(a, b base) int { return int(a.family)<<8 + int(a.hook) - int(b.family)<<8 - int(b.hook) })
	return all, nil
}

func readHook(c *client, family uint8, number uint32, h hook) (all []base, err error) {
	list, _, err := c.ask(query{subsystem: subsystemHook, family: family, dump: true, numbers: map[int]uint32{hookNumber: number}})
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, errNoHooks
	case err != nil:
		return nil, fmt.Errorf("list the functions at hooks of netfilter: %w", err)
	}
	for _, a := range list {
		if b, ok := unknownFunction(a, h); ok {
			b.family = family
			all = append(all, b)
		}
	}
	return all, nil
}

// unknownFunction returns the base chain that an unknown function counts as.
func unknownFunction(a attributes, h hook) (base, bool) {
	name := a.text(hookFunctionName)
	if slices.Contains(knownFunctions, name) {
		return base{}, false
	}
	what := fmt.Sprintf("function %s at %s of netfilter", name, hookNames[h])
	if module := a.text(hookModuleName); module != "" {
		what = fmt.Sprintf("function %s of module %s at %s of netfilter", name, module, hookNames[h])
	}
	if name == "nf_hook_run_bpf" {
		what = fmt.Sprintf("BPF program at %s of netfilter", hookNames[h])
	}
	return base{table: &hookFunction{what}, hook: h, priority: int32(a.number(hookPriority))}, true
}

// readFunctions returns what else than rules may drop packets.
func (p *programs) readFunctions() ([]base, error) {
	all, err := readHooks()
	if errors.Is(err, errNoHooks) {
		return p.read()
	}
	return all, err
}
