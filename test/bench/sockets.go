// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A scenario is a kind of traffic.
type scenario struct {
	Mode        string `json:"mode"`    // "connect-request-close" or "request-response"
	Family      string `json:"family"`  // "IPv4" or "IPv6"
	Backend     string `json:"backend"` // "local" or "remote", as seen from the client's node
	Connections int    `json:"connections"`
}

const (
	connectRequestClose = "connect-request-close"
	requestResponse     = "request-response"
)

func (s scenario) String() string {
	return fmt.Sprintf("%s, %s, %s backend, %d at a time", s.Mode, s.Family, s.Backend, s.Connections)
}

func scenarios() []scenario {
	var all []scenario
	for _, mode := range []string{connectRequestClose, requestResponse} {
		for _, connections := range []int{1, 64} {
			for _, family := range []string{"IPv4", "IPv6"} {
				for _, backend := range []string{"local", "remote"} {
					all = append(all, scenario{mode, family, backend, connections})
				}
			}
		}
	}
	return all
}

// The Services of this part, by the number of their addresses; each has one
// backend, so that all sides speak with the same server.
var backends = map[string]struct {
	number uint8
	server string // the pod, for clients on node-a
	again  string // the same kind of pod, for clients on node-b
}{
	"local":  {101, "a2", "b1"},
	"remote": {102, "b1", "a2"},
}

// The sides of each comparison. The first is the limit that nothing can beat;
// the second is the same, between other pods: what differs between these two is
// what the instrument cannot see.
const (
	sideBare = iota
	sideAgain
	sideDirect
	sideService
	sides
)

var sideNames = [sides]string{"direct, bare node", "direct, bare node (A/A)", "direct, Beeline node", "ClusterIP"}

// A side is one way to a server.
type side struct {
	client *lab.Host
	server *endpoint.Server
	target netip.AddrPort
	path   path
}

// socketRig is two clusters with the same servers, one of them with Beeline.
type socketRig struct {
	bare, hooked *world
	softirq      []int
}

func runSockets(ctx context.Context, b *bench) (err error) {
	rig := &socketRig{softirq: softirqThreads()}
	defer func() { err = errors.Join(err, rig.end()) }()
	if err := rig.setUp(ctx, b); err != nil {
		return err
	}
	for _, s := range scenarios() {
		r, err := rig.measure(ctx, b, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		b.results.Sockets = append(b.results.Sockets, r)
		r.print(b)
	}
	printSocketSummary(b, b.results.Sockets)
	return nil
}

func (rig *socketRig) setUp(ctx context.Context, b *bench) (err error) {
	if rig.bare, err = newWorld(); err != nil {
		return err
	}
	if rig.hooked, err = newWorld(); err != nil {
		return err
	}
	for name, backend := range backends {
		objects := []runtime.Object{node.Service(name, backend.number)}
		for _, slice := range node.Slices(name, rig.hooked.Host(backend.server)) {
			objects = append(objects, slice)
		}
		if err := node.WriteManifest(rig.hooked.folder, name+".yaml", objects...); err != nil {
			return err
		}
	}
	for _, w := range []*world{rig.bare, rig.hooked} {
		for _, pod := range []string{"a2", "b1"} {
			if err := w.startServer(ctx, pod, b.two.Server); err != nil {
				return err
			}
		}
	}
	for _, host := range []string{"node-a", "node-b"} {
		if _, err := rig.hooked.startAgent(b.program, host); err != nil {
			return err
		}
	}
	return errors.Join(rig.bare.proveHooks(0), rig.hooked.proveHooks(1))
}

func (rig *socketRig) end() error {
	var errs []error
	for _, w := range []*world{rig.bare, rig.hooked} {
		if w != nil {
			errs = append(errs, w.end())
		}
	}
	return errors.Join(errs...)
}

// sides are those of a scenario.
func (rig *socketRig) sides(s scenario) [sides]side {
	b := backends[s.Backend]
	service := node.ClusterIPs(b.number)[0]
	address := func(h *lab.Host) netip.Addr { return h.Addr4 }
	if s.Family == "IPv6" {
		service = node.ClusterIPs(b.number)[1]
		address = func(h *lab.Host) netip.Addr { return h.Addr6 }
	}
	direct := func(w *world, client, server string, p path) side {
		to := netip.AddrPortFrom(address(w.Host(server)), lab.PortTCP)
		return side{w.Host(client), w.servers[server], to, p}
	}
	all := [sides]side{
		sideBare:    direct(rig.bare, "a1", b.server, unhooked),
		sideAgain:   direct(rig.bare, "b2", b.again, unhooked),
		sideDirect:  direct(rig.hooked, "a1", b.server, passed),
		sideService: direct(rig.hooked, "a1", b.server, balanced),
	}
	all[sideService].target = netip.AddrPortFrom(netip.MustParseAddr(service), 80)
	return all
}

// measure lets the sides take turns, round by round, in an order that changes:
// whatever drifts touches all of them.
func (rig *socketRig) measure(ctx context.Context, b *bench, s scenario) (socketResult, error) {
	r := socketResult{Scenario: s, CPUs: b.pair(s.Connections)}
	all := rig.sides(s)
	for _, side := range all {
		if err := side.server.Pin(r.CPUs.Server); err != nil {
			return r, err
		}
	}
	for round := range b.runs {
		order := make([]int, 0, sides)
		for i := range all {
			order = append(order, (i+round)%len(all))
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			sample, err := rig.slice(ctx, b, &r, all[i])
			if err != nil {
				return r, fmt.Errorf("%s: %w", sideNames[i], err)
			}
			r.Samples[i] = append(r.Samples[i], sample)
		}
	}
	r.summarize()
	return r, nil
}

// slice is a moment of traffic on one side, and the proof that it went that
// side's way.
func (rig *socketRig) slice(ctx context.Context, b *bench, r *socketResult, side side) (sample, error) {
	before, err := rig.hooked.counters()
	if err != nil {
		return sample{}, err
	}
	result, err := endpoint.RunClient(ctx, side.client, endpoint.ClientConfig{
		Target: side.target, Connections: r.Scenario.Connections, Close: r.Scenario.Mode == connectRequestClose,
		Warmup: b.slice / 10, Measure: b.slice, CPU: r.CPUs.Client,
		Processes: append([]int{side.server.PID()}, rig.softirq...),
	})
	if err != nil {
		return sample{}, err
	}
	after, err := rig.hooked.counters()
	if err != nil {
		return sample{}, err
	}
	if result.Operations == 0 {
		return sample{}, errors.New("nothing was answered in the measured time")
	}
	return sampleOf(result), prove(before, after, side.path, result.Connected)
}
