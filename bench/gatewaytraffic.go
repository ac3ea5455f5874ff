// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// gatewayTrafficCase is a kind of traffic between two hosts.
type gatewayTrafficCase struct {
	mode        endpoint.Mode
	nat         bool
	connections int
	requests    int // of a short flow
}

func (c gatewayTrafficCase) scenario() string {
	if c.requests > 0 {
		return fmt.Sprintf("%s of %d packets each way, %s", c.mode, c.requests, gatewayNAT(c.nat))
	}
	return fmt.Sprintf("%s, %s", c.mode, gatewayNAT(c.nat))
}

func (c gatewayTrafficCase) String() string {
	return fmt.Sprintf("%s, %d at a time", c.scenario(), c.connections)
}

func gatewayTrafficCases() (all []gatewayTrafficCase) {
	for _, nat := range []bool{false, true} {
		all = append(all, gatewayTrafficCase{endpoint.Stream, nat, 1, 0},
			gatewayTrafficCase{endpoint.RequestResponse, nat, 1, 0}, gatewayTrafficCase{endpoint.RequestResponse, nat, 64, 0})
		for _, requests := range []int{1, 5, 20} {
			all = append(all, gatewayTrafficCase{endpoint.UDPFlows, nat, 1, requests})
		}
	}
	return all
}

func (c gatewayTrafficCase) series(side int) result.Series {
	return result.Series{Part: partGateway, Scenario: c.scenario(), Side: gatewayNames[side], Family: "IPv4",
		Parameters: result.Parameters{"connections": c.connections}}
}

// gatewayHosts are a client and a server with a router of each kind between them: node-a with an agent, node-b
// without. Behind router number i the client is 10.i.1.2, the server 10.i.2.2, whose public address is
// 10.i.3.3.
type gatewayHosts struct {
	world *world
	agent *node.Agent
}

const (
	// Two at each of two devices, and the time until then.
	gatewayPrograms     = 4
	gatewayProviderTime = time.Minute
	// In this time every flow has more packets than the threshold.
	gatewayWarmup     = 250 * time.Millisecond
	gatewayClientHost = "client"
	gatewayServerHost = "b1"
)

// gatewayRouters are the routers of the sides.
var gatewayRouters = [gatewaySides]string{gatewayStack: "node-b", gatewayStackAgain: "node-b", gatewayCache: "node-a"}

// gatewayTarget is the server's address by a side's router.
func gatewayTarget(side int, nat bool) netip.AddrPort {
	number := byte(2)
	if gatewayRouters[side] == "node-a" {
		number = 1
	}
	if nat {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, number, 3, 3}), serverPort)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, number, 2, 2}), serverPort)
}

func runGatewayTraffic(ctx context.Context, b *bench) (err error) {
	w, err := newWorldOf(lab.Shape{Bare: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.end()) }()
	for i, router := range []string{"node-a", "node-b"} {
		if err := connectGateway(ctx, w, router, i+1); err != nil {
			return err
		}
	}
	if err := w.startServer(ctx, gatewayServerHost, b.two.Server); err != nil {
		return err
	}
	rig := &gatewayHosts{world: w, agent: &node.Agent{Host: w.Host("node-a"), Program: b.program, Manifests: w.folder, EdgeMode: "off", Flags: []string{"--gateway-devices=c0,s0", "--gateway-provider=cache"}}}
	w.agents = append(w.agents, rig.agent)
	if err := rig.agent.Start(); err != nil {
		return err
	}
	if err := rig.awaitPrograms(ctx); err != nil {
		return err
	}
	for _, c := range gatewayTrafficCases() {
		if b.only != nil && !b.only.MatchString(c.String()) {
			continue
		}
		if err := rig.measure(ctx, b, c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

// awaitPrograms waits for the programs, which the agent attaches when it has tested its provider: nothing else shows
// that short flows meet them.
func (rig *gatewayHosts) awaitPrograms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayProviderTime)
	defer cancel()
	for {
		links, err := filepath.Glob(filepath.Join(rig.agent.BPFFS(), "links", datapath.GatewayComponent+"-*"))
		if err != nil || len(links) == gatewayPrograms {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the gateway has %d programs at its devices, want %d", len(links), gatewayPrograms)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// gatewayScripts are commands of ip(8) for each host.
var gatewayScripts = map[string]string{
	"router": `link add c0 index 101 type veth peer name DEVICE index 20N netns CLIENT
link add s0 index 111 type veth peer name DEVICE index 21N netns SERVER
addr add 10.N.1.1/24 dev c0
addr add 10.N.2.1/24 dev s0
link set c0 up
link set s0 up
`,
	gatewayClientHost: `addr add 10.N.1.2/24 dev DEVICE
link set DEVICE up
route add 10.N.0.0/16 via 10.N.1.1
`,
	gatewayServerHost: `addr add 10.N.2.2/24 dev DEVICE
link set DEVICE up
route add 10.N.0.0/16 via 10.N.2.1
`,
}

// connectGateway puts a router between client and server.
func connectGateway(ctx context.Context, w *world, router string, number int) error {
	for _, host := range []string{router, gatewayClientHost, gatewayServerHost} {
		script := gatewayScripts[host]
		if host == router {
			script = gatewayScripts["router"]
		}
		if err := ipBatch(ctx, w, host, script, number); err != nil {
			return err
		}
	}
	return nftRun(ctx, w.Host(router), fmt.Sprintf(gatewayRules, fmt.Sprintf("10.%d.3.3", number), fmt.Sprintf("10.%d.2.2", number), serverPort))
}

// ipBatch runs commands of ip(8), in which names are filled in.
func ipBatch(ctx context.Context, w *world, host, script string, number int) error {
	netns := func(name string) string { return filepath.Base(w.Host(name).NetNS) }
	cmd := w.Host(host).Command(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.NewReplacer("DEVICE", fmt.Sprintf("eth%d", number-1), "CLIENT", netns(gatewayClientHost), "SERVER", netns(gatewayServerHost),
		".N.", fmt.Sprintf(".%d.", number), "20N", fmt.Sprint(200+number), "21N", fmt.Sprint(210+number)).Replace(script))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: ip: %w: %s", host, err, out)
	}
	return nil
}

// measure runs the sides in turn.
func (rig *gatewayHosts) measure(ctx context.Context, b *bench, c gatewayTrafficCase) error {
	cpus := pairOf(b.results.Settings, c.connections)
	if err := rig.world.servers[gatewayServerHost].Pin(cpus.Server); err != nil {
		return err
	}
	for round := range b.runs {
		for _, side := range turns(round, gatewaySides) {
			r, err := rig.slice(ctx, b, c, side, cpus.Client)
			if err != nil {
				return fmt.Errorf("%s: %w", gatewayNames[side], err)
			}
			operations := float64(r.Operations)
			gatewayRow(b.results, c.series, side, metricP50, micros(r.P50))
			gatewayRow(b.results, c.series, side, metricRate, operations/r.Elapsed.Seconds())
			gatewayRow(b.results, c.series, side, metricCPU, micros(r.CPU)/operations)
		}
	}
	return nil
}

// slice is a short time of traffic on one side, and the proof of its path. On a busy machine the agent may get a
// CPU too late: such a slice is repeated.
func (rig *gatewayHosts) slice(ctx context.Context, b *bench, c gatewayTrafficCase, side, cpu int) (r endpoint.Result, err error) {
	const tries = 10
	for range tries {
		if r, err = rig.try(ctx, b, c, side, cpu); !errors.Is(err, errLateAgent) {
			return r, err
		}
	}
	return r, err
}

var errLateAgent = errors.New("the agent was late")

func (rig *gatewayHosts) try(ctx context.Context, b *bench, c gatewayTrafficCase, side, cpu int) (r endpoint.Result, err error) {
	w := rig.world
	for _, router := range []string{"node-a", "node-b"} {
		if err := w.Host(router).Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			return r, fmt.Errorf("flush the kernel's conntrack: %w", err)
		}
	}
	before, err := rig.cached()
	if err != nil {
		return r, err
	}
	warmup := gatewayWarmup
	if c.requests > 0 {
		warmup = 0 // its packets would count as those of the operations
	}
	r, err = endpoint.RunClient(ctx, w.Host(gatewayClientHost), endpoint.ClientConfig{
		Mode: c.mode, Target: gatewayTarget(side, c.nat), Connections: c.connections, Requests: c.requests, Warmup: warmup, Measure: b.slice, CPU: cpu,
		Processes: append([]int{w.servers[gatewayServerHost].PID(), rig.agent.PID()}, softirqThreads()...),
	})
	if err != nil {
		return r, err
	}
	after, err := rig.cached()
	if err != nil {
		return r, err
	}
	// Short flows end before the cache takes them. A stream has fewer packets than operations: they are merged.
	takes := side == gatewayCache && c.requests == 0
	switch taken := after - before; {
	case takes && (taken == 0 || c.mode != endpoint.Stream && taken < r.Operations):
		return r, fmt.Errorf("%w: the cache has forwarded %d packets of %d operations", errLateAgent, taken, r.Operations)
	case side != gatewayCache && taken > 0, !takes && taken > mostReused(r.Operations, c.requests), r.Operations == 0:
		return r, fmt.Errorf("the cache has forwarded %d packets of %d operations", taken, r.Operations)
	}
	return r, nil
}

// mostReused is how many packets of short flows the cache may forward: half of them. A client's port that is used again
// within half a second continues the flow before.
func mostReused(operations uint64, requests int) uint64 { return operations * uint64(requests) }

// cached is how many packets the flow cache has forwarded.
func (rig *gatewayHosts) cached() (uint64, error) {
	packets, _, err := datapath.ReadGatewayCounters(rig.agent.BPFFS())
	return packets["cache"], err
}
