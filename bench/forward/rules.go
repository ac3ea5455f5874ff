// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// AddRules adds netfilter with one rule: by nft on node-a, and by iptables of both kinds.
func (rig *Rig) AddRules(ctx context.Context) error {
	w, err := rig.NewWorld()
	if err != nil {
		return err
	}
	for _, r := range []struct {
		name, host string
		commands   [2][]string // that add the rule, and print it with its counter
		counter    string
	}{
		{SideNFT, "node-a", [2][]string{
			{"nft", fmt.Sprintf("add table ip rates; add chain ip rates pre { type nat hook prerouting priority dstnat; }; "+
				"add rule ip rates pre ip daddr %s udp dport %d counter dnat to %s", Service.Addr(), harness.ServicePort, Endpoint)},
			{"nft", "list", "chain", "ip", "rates", "pre"}}, `counter packets (\d+) `},
		{SideIPTables, "node-b", iptablesRule("iptables-nft"), iptablesCounter},
		{SideOldIPTables, "node-c", iptablesRule("iptables-legacy"), iptablesCounter},
	} {
		host := w.Host(r.host)
		if err := harness.RunOn(ctx, host, "", r.commands[0]...); err != nil {
			return err
		}
		line, err := rig.newLine(ctx, w, r.host)
		if err != nil {
			return err
		}
		rig.add(&Side{Name: r.name, Line: line, Becomes: becomesDNAT, Begun: RuleCount(ctx, host, r.counter, r.commands[1])})
	}
	return nil
}

const iptablesCounter = `(?m)^\s*(\d+) .*DNAT`

// iptablesRule has the commands that add the rule, and print it with its counter.
func iptablesRule(program string) [2][]string {
	return [2][]string{
		{program, "-w", "-t", "nat", "-A", "PREROUTING", "-d", Service.Addr().String(), "-p", "udp",
			"--dport", strconv.Itoa(harness.ServicePort), "-j", "DNAT", "--to-destination", Endpoint.String()},
		{program, "-w", "-t", "nat", "-L", "PREROUTING", "-v", "-x", "-n"},
	}
}

// RuleCount reads a rule's counter. A rule for NAT sees the first packet of each flow.
func RuleCount(ctx context.Context, host *lab.Host, counter string, print []string) func() (uint64, error) {
	find := regexp.MustCompile(counter)
	return func() (uint64, error) {
		out, err := host.Command(ctx, print...).Output()
		if err != nil {
			return 0, err
		}
		found := find.FindSubmatch(out)
		if found == nil {
			return 0, fmt.Errorf("no counter in:\n%s", out)
		}
		return strconv.ParseUint(string(found[1]), 10, 64)
	}
}

// rateServices are the measured Services: one with SNAT, one with DSR.
func rateServices() []harness.ServiceObjects {
	snat := harness.NewServiceObjects("snat", corev1.ProtocolUDP, netip.MustParseAddr("10.96.0.101"), Endpoint.Addr())
	snat.Service.Spec.ExternalIPs = []string{Service.Addr().String()}
	dsr := harness.NewServiceObjects("dsr", corev1.ProtocolUDP, netip.MustParseAddr("10.96.0.102"), Endpoint.Addr())
	dsr.Service.Spec.ExternalIPs = []string{rateDirect.Addr().String()}
	// Its flows need no conntrack entries, and get none.
	dsr.Service.Annotations = map[string]string{service.AnnotationDSR: testrun.DSRIPIP, service.AnnotationAlgorithm: "maglev", service.AnnotationStateless: "true"}
	return []harness.ServiceObjects{snat, dsr}
}

func (rig *Rig) addProxy(ctx context.Context, services int) error {
	w, err := rig.NewWorld()
	if err != nil {
		return err
	}
	control, err := controlplane.Start(ctx, w.Lab, rig.Bench.ControlPlane)
	if err != nil {
		return err
	}
	defer control.Stop()
	all := append([]harness.ServiceObjects{rateServices()[0]}, harness.Fillers(services-1, corev1.ProtocolUDP)...)
	objects := node.Cluster(w.Lab)
	for _, o := range all {
		objects = append(objects, []runtime.Object{o.Service, o.Slice}...)
	}
	if err := control.Create(ctx, objects...); err != nil {
		return err
	}
	last := all[len(all)-1].Service.Spec.ClusterIP
	for _, p := range []struct{ host, mode, name string }{
		{"node-a", controlplane.NFTables, "nftables"}, {"node-b", controlplane.IPTablesLegacy, "iptables"},
	} {
		host := w.Host(p.host)
		proxy, err := control.StartProxy(host, p.mode)
		if err != nil {
			return err
		}
		if err := proxy.AwaitRules(ctx, "serving all Services", Service.Addr().String(), Endpoint.Addr().String(), last); err != nil {
			return err
		}
		if err := proxy.Stop(); err != nil {
			return err
		}
		line, err := rig.newLine(ctx, w, p.host)
		if err != nil {
			return err
		}
		name := ProxyName(p.name, services)
		rig.add(&Side{Name: name, Line: line, Becomes: BecomesSNAT, Begun: func() (uint64, error) { return tracked(host) }})
	}
	return control.Stop()
}

// ProxyName is the name of a side with kube-proxy.
func ProxyName(mode string, services int) string {
	if services == 1 {
		return fmt.Sprintf(harness.ProxySides+"%s, 1 Service", mode)
	}
	return fmt.Sprintf(harness.ProxySides+"%s, %d Services", mode, services)
}

// tracked is how many of the clients' flows a host's conntrack knows.
func tracked(host *lab.Host) (count uint64, err error) {
	err = host.Do(func() error {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			return fmt.Errorf("connection tracking: %w", err)
		}
		for _, f := range all {
			if f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.DstIP.Equal(Service.Addr().AsSlice()) {
				count++
			}
		}
		return nil
	})
	return count, err
}
