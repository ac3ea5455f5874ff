// SPDX-License-Identifier: Apache-2.0

package endurance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/node"
)

// An enduranceSide is what balances on node-a: external clients connect to an external IP, and the backend is
// on node-b, so node-a translates both addresses.
type enduranceSide struct {
	name      string
	direct    bool // clients connect to the backend
	conntrack bool // the kernel's conntrack knows the flows
	balance   func(*enduranceRig, context.Context) error
}

const (
	sideDirect  = "direct"
	sideRunning = "Beeline"
	sideStopped = "Beeline, agent killed"
	sideRules   = "iptables, DNAT and MASQUERADE"
	sideProxy   = harness.ProxySides + "nftables"
)

var sides = []enduranceSide{
	{name: sideDirect, direct: true},
	{name: sideRunning, balance: (*enduranceRig).addBeeline},
	{name: sideStopped, balance: (*enduranceRig).addStoppedBeeline},
	{name: sideRules, conntrack: true, balance: (*enduranceRig).addRules},
	{name: sideProxy, conntrack: true, balance: (*enduranceRig).addProxy},
}

// records is the size of the side's table in a turn, and whether to measure it.
func (s enduranceSide) records(b *bench, turn, size, machineMax int) (int, bool) {
	switch {
	case s.name == sideProxy && controlplane.Find(b.ControlPlane) != nil:
		return size, false // as the printed table says
	case !s.conntrack || b.endurance.setMax:
		return size, true
	}
	// The kernel's table has the machine's size; network namespaces have none of their own.
	return machineMax, turn == 0
}

// An enduranceRig is a lab with one side.
type enduranceRig struct {
	bench   *bench
	side    enduranceSide
	records int
	world   *harness.World
	servers []*endpoint.LoadServer // of the measured Service, and of the other
	target  netip.AddrPort
	other   netip.AddrPort
	device  string // of the fabric, towards the node that the flood enters
	used    int    // number of clients
}

// Addresses of honest clients, and spoofed ones of floods. Replies to the latter end at the fabric.
var (
	clientRange = netip.MustParsePrefix("10.200.0.0/16")
	floodRange  = netip.MustParsePrefix("100.64.0.0/10")
)

var pods = []string{"b1", "b2"}

var services = []struct {
	name   string
	number uint8
	at     netip.Addr
}{{"asked", 101, harness.AddressSNAT}, {"other", 102, harness.AddressDSR}}

func newRig(ctx context.Context, b *bench, side enduranceSide, records int) (rig *enduranceRig, err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return nil, err
	}
	rig = &enduranceRig{bench: b, side: side, records: records, world: w, device: "node-a"}
	defer func() {
		if err != nil {
			err = errors.Join(err, rig.end())
		}
	}()
	if err := rig.addNetwork(); err != nil {
		return rig, err
	}
	clients := netip.PrefixFrom(w.Host("node-a").Addr4, 32)
	if side.direct {
		clients, rig.device = clientRange, "node-b"
	}
	for _, pod := range pods {
		server, err := endpoint.StartLoadServer(ctx, w.Host(pod), harness.ServerPort, clients, b.Two.Server)
		if err != nil {
			return rig, err
		}
		rig.servers = append(rig.servers, server)
	}
	if side.direct {
		rig.target, rig.other = netip.AddrPortFrom(w.Host("b1").Addr4, harness.ServerPort), netip.AddrPortFrom(w.Host("b2").Addr4, harness.ServerPort)
		return rig, nil
	}
	rig.target, rig.other = netip.AddrPortFrom(services[0].at, harness.ServicePort), netip.AddrPortFrom(services[1].at, harness.ServicePort)
	return rig, side.balance(rig, ctx)
}

func (rig *enduranceRig) end() error {
	for _, s := range rig.servers {
		s.Stop()
	}
	return rig.world.End()
}

// finish ends the servers, and checks that all their clients took the side's path.
func (rig *enduranceRig) finish() error {
	for i, s := range rig.servers {
		seen, err := s.Finish()
		if err != nil {
			return err
		}
		// A flood's packets take the clients' path, but without a balancer they have their own
		// addresses.
		if seen.Strange > 0 && !rig.side.direct {
			return fmt.Errorf("%s saw %d connections and datagrams of other addresses than node-a's", pods[i], seen.Strange)
		}
		if rig.side.direct && seen.Strange > seen.Flood {
			return fmt.Errorf("%s saw %d connections and datagrams that are no client's and no flood's", pods[i], seen.Strange-seen.Flood)
		}
	}
	return nil
}

// addNetwork gives the client a network of addresses, ends replies to spoofed addresses at the fabric, and
// makes client and servers keep TIME_WAIT for all connections.
func (rig *enduranceRig) addNetwork() error {
	w := rig.world
	route := func(host, device string, r netlink.Route) error {
		nl, link, err := w.Host(host).OpenDevice(device)
		if err != nil {
			return err
		}
		defer nl.Close()
		if r.Type != unix.RTN_BLACKHOLE {
			r.LinkIndex = link.Attrs().Index
		}
		if err := nl.RouteAdd(&r); err != nil {
			return fmt.Errorf("host %s: route to %s: %w", host, r.Dst, err)
		}
		return nil
	}
	network := func(p netip.Prefix) *net.IPNet {
		return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	}
	errs := []error{
		route("client", "lo", netlink.Route{Dst: network(clientRange), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}),
		route("fabric", "client", netlink.Route{Dst: network(clientRange), Gw: w.Host("client").Addr4.AsSlice()}),
		route("fabric", "lo", netlink.Route{Dst: network(floodRange), Type: unix.RTN_BLACKHOLE}),
		harness.RouteTo(w.Host("fabric"), "node-a", harness.BalancedRange, w.Host("node-a").Addr4),
	}
	for _, host := range append([]string{"client"}, pods...) {
		errs = append(errs, w.Host(host).Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/tcp_max_tw_buckets", []byte("2000000"), 0o644)
		}))
	}
	return errors.Join(errs...)
}

// objects are the Services, and their endpoints.
func (rig *enduranceRig) objects() (all []runtime.Object) {
	for i, s := range services {
		service, slices := node.Service(s.name, s.number), node.Slices(s.name, rig.world.Host(pods[i]))
		node.SetPorts(service, slices,
			node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: harness.ServicePort, Target: harness.ServerPort},
			node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: harness.ServicePort, Target: harness.ServerPort})
		service.Spec.ExternalIPs = []string{s.at.String()}
		all = append(all, harness.Objects(service, slices)...)
	}
	return all
}

// addBeeline starts an agent with its defaults, except for the size of the conntrack table.
func (rig *enduranceRig) addBeeline(context.Context) error {
	if err := node.WriteManifest(rig.world.Folder, "services.yaml", rig.objects()...); err != nil {
		return err
	}
	_, err := rig.world.StartAgent(rig.bench.Program, "node-a", "", append([]string{"--max-flows", strconv.Itoa(rig.records)}, rig.bench.endurance.agent...)...)
	return err
}

// addStoppedBeeline kills the agent as soon as its tables are complete: its programs stay attached.
func (rig *enduranceRig) addStoppedBeeline(ctx context.Context) error {
	if err := rig.addBeeline(ctx); err != nil {
		return err
	}
	return rig.world.Agents[0].Kill()
}

func (rig *enduranceRig) addRules(ctx context.Context) error {
	host := rig.world.Host("node-a")
	for i, s := range services {
		backend := rig.world.Host(pods[i]).Addr4
		for _, protocol := range []string{"tcp", "udp"} {
			for _, rule := range [][]string{
				{"PREROUTING", "-d", s.at.String(), "-p", protocol, "--dport", strconv.Itoa(harness.ServicePort), "-j", "DNAT", "--to-destination", netip.AddrPortFrom(backend, harness.ServerPort).String()},
				{"POSTROUTING", "-d", backend.String(), "-p", protocol, "--dport", strconv.Itoa(harness.ServerPort), "-j", "MASQUERADE"},
			} {
				argv := append([]string{"iptables-nft", "-w", "-t", "nat", "-A"}, rule...)
				if err := harness.RunOn(ctx, host, "", argv...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// addProxy has kube-proxy write its rules, and ends it and the API server: the rules stay.
func (rig *enduranceRig) addProxy(ctx context.Context) error {
	control, err := controlplane.Start(ctx, rig.world.Lab, rig.bench.ControlPlane)
	if err != nil {
		return err
	}
	defer control.Stop()
	if err := control.Create(ctx, append(node.Cluster(rig.world.Lab), rig.objects()...)...); err != nil {
		return err
	}
	proxy, err := control.StartProxy(rig.world.Host("node-a"), controlplane.NFTables)
	if err != nil {
		return err
	}
	var wanted []string
	for i, s := range services {
		for _, protocol := range []string{"tcp", "udp"} {
			wanted = append(wanted, fmt.Sprintf("%s . %s . %d", s.at, protocol, harness.ServicePort))
		}
		wanted = append(wanted, fmt.Sprintf("%s . %d", rig.world.Host(pods[i]).Addr4, harness.ServerPort))
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := proxy.AwaitRules(limited, "serving both Services", wanted...); err != nil {
		return err
	}
	return errors.Join(proxy.Stop(), control.Stop())
}

// clients allocates so many client numbers.
func (rig *enduranceRig) clients(count int) (first int) {
	first = rig.used
	rig.used += count
	return first
}

func (rig *enduranceRig) startIdle(ctx context.Context) (*endpoint.Idle, error) {
	each := rig.bench.endurance.idle
	return endpoint.StartIdle(ctx, rig.world.Host("client"), endpoint.IdleConfig{
		Targets: []netip.AddrPort{rig.target, rig.other}, Each: each, Sources: clientRange, First: rig.clients(2 * each),
		Patience: patience, CPU: rig.bench.Two.Client,
	})
}

// startFlood floods both Services, from the fabric's device towards the node.
func (rig *enduranceRig) startFlood(ctx context.Context, answered bool) (*endpoint.Flood, error) {
	fabric := rig.world.Host("fabric")
	far, err := harness.DeviceOf(fabric, rig.device)
	if err != nil {
		return nil, err
	}
	near, err := harness.DeviceOf(rig.world.Host(rig.device), "eth0")
	if err != nil {
		return nil, err
	}
	return endpoint.StartFlood(ctx, fabric, endpoint.FloodConfig{
		Device: rig.device, Index: far.Index, From: [6]byte(far.HardwareAddr), To: [6]byte(near.HardwareAddr),
		Targets: []netip.AddrPort{rig.target, rig.other}, Sources: floodRange, Answered: answered,
		Rate: rig.bench.endurance.floodRate, CPU: rig.bench.Two.Client,
	})
}

// received is the number of packets received by the node that a flood enters.
func (rig *enduranceRig) received() (uint64, error) {
	device, err := harness.DeviceOf(rig.world.Host(rig.device), "eth0")
	if err != nil {
		return 0, err
	}
	return device.Statistics.RxPackets, nil
}

// conntrackMaxFile applies to the whole machine: network namespaces can read it.
const conntrackMaxFile = "/proc/sys/net/netfilter/nf_conntrack_max"

func conntrackMax() (int, error) {
	text, err := os.ReadFile(conntrackMaxFile)
	if err != nil {
		return 0, fmt.Errorf("size of the kernel's conntrack table: %w (is its module nf_conntrack loaded?)", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// setConntrackMax sets the machine's size, and returns a function that restores it.
func setConntrackMax(size int) (restore func() error, err error) {
	before, err := conntrackMax()
	if err != nil {
		return nil, err
	}
	write := func(n int) error { return os.WriteFile(conntrackMaxFile, []byte(strconv.Itoa(n)), 0o644) }
	return func() error { return write(before) }, write(size)
}
