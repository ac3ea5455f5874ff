// SPDX-License-Identifier: Apache-2.0

package offload

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
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/internal/shortcut/offload"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// trafficCase is a kind of traffic between two hosts.
type trafficCase struct {
	mode        endpoint.Mode
	nat         bool
	connections int
	requests    int // of a short flow
}

func (c trafficCase) scenario() string {
	if c.requests > 0 {
		return fmt.Sprintf("%s of %d packets each way, %s", c.mode, c.requests, offloadNAT(c.nat))
	}
	return fmt.Sprintf("%s, %s", c.mode, offloadNAT(c.nat))
}

func (c trafficCase) String() string {
	return fmt.Sprintf("%s, %d at a time", c.scenario(), c.connections)
}

func trafficCases() (all []trafficCase) {
	for _, nat := range []bool{false, true} {
		all = append(all, trafficCase{endpoint.Stream, nat, 1, 0},
			trafficCase{endpoint.RequestResponse, nat, 1, 0}, trafficCase{endpoint.RequestResponse, nat, 64, 0})
		for _, requests := range []int{1, 5, 20} {
			all = append(all, trafficCase{endpoint.UDPFlows, nat, 1, requests})
		}
	}
	return all
}

func (c trafficCase) series(side int) result.Series {
	return result.Series{Part: partName, Scenario: c.scenario(), Side: names[side], Family: "IPv4",
		Parameters: result.Parameters{"connections": c.connections}}
}

// hosts are a client and a server with a router of each kind between them: node-a with an agent, node-b
// without. Behind router number i the client is 10.i.1.2, the server 10.i.2.2, whose public address is
// 10.i.3.3.
type hosts struct {
	world *harness.World
	agent *node.Agent
}

const (
	// Two at each of two devices, and the time until then.
	offloadPrograms = 4
	providerTime    = time.Minute
	// In this time every flow has more packets than the threshold.
	offloadWarmup = 250 * time.Millisecond
	clientHost    = "client"
	serverHost    = "b1"
)

// routers are the routers of the sides.
var routers = [offloadSides]string{stack: "node-b", stackAgain: "node-b", cache: "node-a"}

// offloadTarget is the server's address by a side's router.
func offloadTarget(side int, nat bool) netip.AddrPort {
	number := byte(2)
	if routers[side] == "node-a" {
		number = 1
	}
	if nat {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, number, 3, 3}), harness.ServerPort)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, number, 2, 2}), harness.ServerPort)
}

func runTraffic(ctx context.Context, b *harness.Bench) (err error) {
	w, err := harness.NewWorldOf(lab.Shape{Bare: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.End()) }()
	for i, router := range []string{"node-a", "node-b"} {
		if err := connect(ctx, w, router, i+1); err != nil {
			return err
		}
	}
	if err := w.StartServer(ctx, serverHost, b.Two.Server); err != nil {
		return err
	}
	rig := &hosts{world: w}
	if rig.agent, err = w.StartAgent(b.Program, "node-a", "off", "--offload-devices=c0,s0", "--offload-provider=cache"); err != nil {
		return err
	}
	if err := rig.awaitPrograms(ctx); err != nil {
		return err
	}
	for _, c := range trafficCases() {
		if b.Only != nil && !b.Only.MatchString(c.String()) {
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
func (rig *hosts) awaitPrograms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, providerTime)
	defer cancel()
	for {
		links, err := filepath.Glob(filepath.Join(rig.agent.BPFFS(), "links", offload.ComponentName+"-*"))
		if err != nil || len(links) == offloadPrograms {
			return err
		}
		if harness.Pause(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("flow offload has %d programs at its devices, want %d", len(links), offloadPrograms)
		}
	}
}

// scripts are commands of ip(8) for each host.
var scripts = map[string]string{
	"router": `link add c0 index 101 type veth peer name DEVICE index 20N netns CLIENT
link add s0 index 111 type veth peer name DEVICE index 21N netns SERVER
addr add 10.N.1.1/24 dev c0
addr add 10.N.2.1/24 dev s0
link set c0 up
link set s0 up
`,
	clientHost: `addr add 10.N.1.2/24 dev DEVICE
link set DEVICE up
route add 10.N.0.0/16 via 10.N.1.1
`,
	serverHost: `addr add 10.N.2.2/24 dev DEVICE
link set DEVICE up
route add 10.N.0.0/16 via 10.N.2.1
`,
}

// connect puts a router between client and server.
func connect(ctx context.Context, w *harness.World, router string, number int) error {
	for _, host := range []string{router, clientHost, serverHost} {
		script := scripts[host]
		if host == router {
			script = scripts["router"]
		}
		if err := ipBatch(ctx, w, host, script, number); err != nil {
			return err
		}
	}
	rules := fmt.Sprintf(offloadRules, fmt.Sprintf("10.%d.3.3", number), fmt.Sprintf("10.%d.2.2", number), harness.ServerPort)
	return harness.RunOn(ctx, w.Host(router), rules, "nft", "-f", "-")
}

// ipBatch runs commands of ip(8), in which names are filled in.
func ipBatch(ctx context.Context, w *harness.World, host, script string, number int) error {
	netns := func(name string) string { return filepath.Base(w.Host(name).NetNS) }
	names := strings.NewReplacer("DEVICE", fmt.Sprintf("eth%d", number-1), "CLIENT", netns(clientHost), "SERVER", netns(serverHost),
		".N.", fmt.Sprintf(".%d.", number), "20N", fmt.Sprint(200+number), "21N", fmt.Sprint(210+number))
	return harness.RunOn(ctx, w.Host(host), names.Replace(script), "ip", "-batch", "-")
}

// measure runs the sides in turn.
func (rig *hosts) measure(ctx context.Context, b *harness.Bench, c trafficCase) error {
	cpus := harness.PairOf(b.Results.Settings, c.connections)
	if err := rig.world.Servers[serverHost].Pin(cpus.Server); err != nil {
		return err
	}
	return harness.InTurns(b.Runs, names[:offloadSides], func(side int) error {
		r, err := rig.slice(ctx, b, c, side, cpus.Client)
		if err == nil {
			harness.AddTraffic(b.Results, names[stack], c.series(side), r, harness.MetricP50, harness.MetricRate, harness.MetricCPU)
		}
		return err
	})
}

// slice is a short time of traffic on one side, and the proof of its path. On a busy machine the agent may get a
// CPU too late: such a slice is repeated.
func (rig *hosts) slice(ctx context.Context, b *harness.Bench, c trafficCase, side, cpu int) (r endpoint.Result, err error) {
	const tries = 10
	for range tries {
		if r, err = rig.try(ctx, b, c, side, cpu); !errors.Is(err, errLateAgent) {
			return r, err
		}
	}
	return r, err
}

var errLateAgent = errors.New("the agent was late")

func (rig *hosts) try(ctx context.Context, b *harness.Bench, c trafficCase, side, cpu int) (r endpoint.Result, err error) {
	w := rig.world
	for _, router := range []string{"node-a", "node-b"} {
		if err := w.Host(router).Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			return r, fmt.Errorf("flush the kernel's conntrack: %w", err)
		}
	}
	before, err := cached(rig.agent.BPFFS())
	if err != nil {
		return r, err
	}
	warmup := offloadWarmup
	if c.requests > 0 {
		warmup = 0 // its packets would count as those of the operations
	}
	r, err = endpoint.RunClient(ctx, w.Host(clientHost), endpoint.ClientConfig{
		Mode: c.mode, Target: offloadTarget(side, c.nat), Connections: c.connections, Requests: c.requests, Warmup: warmup, Measure: b.Slice, CPU: cpu,
		Processes: append([]int{w.Servers[serverHost].PID(), rig.agent.PID()}, harness.SoftirqThreads()...),
	})
	if err != nil {
		return r, err
	}
	after, err := cached(rig.agent.BPFFS())
	if err != nil {
		return r, err
	}
	// Short flows end before the cache takes them. A stream has fewer packets than operations: they are merged.
	takes := side == cache && c.requests == 0
	switch taken := after - before; {
	case takes && (taken == 0 || c.mode != endpoint.Stream && taken < r.Operations):
		return r, fmt.Errorf("%w: the cache has forwarded %d packets of %d operations", errLateAgent, taken, r.Operations)
	case side != cache && taken > 0, !takes && taken > mostReused(r.Operations, c.requests), r.Operations == 0:
		return r, fmt.Errorf("the cache has forwarded %d packets of %d operations", taken, r.Operations)
	}
	return r, nil
}

// mostReused is how many packets of short flows the cache may forward: half of them. A client's port that is used again
// within half a second continues the flow before.
func mostReused(operations uint64, requests int) uint64 { return operations * uint64(requests) }
