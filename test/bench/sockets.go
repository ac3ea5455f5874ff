// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

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
		if err := rig.measure(ctx, b, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
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
		err := rig.hooked.addService(name, backend.number, rig.hooked.Host(backend.server),
			node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: servicePort, Target: serverPort},
			node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: servicePort, Target: serverPort})
		if err != nil {
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
		to := netip.AddrPortFrom(address(w.Host(server)), serverPort)
		return side{w.Host(client), w.servers[server], to, p}
	}
	all := [sides]side{
		sideBare:    direct(rig.bare, "a1", b.server, unhooked),
		sideAgain:   direct(rig.bare, "b2", b.again, unhooked),
		sideDirect:  direct(rig.hooked, "a1", b.server, passed),
		sideService: direct(rig.hooked, "a1", b.server, balanced),
	}
	all[sideService].target = netip.AddrPortFrom(netip.MustParseAddr(service), servicePort)
	return all
}

// measure lets the sides take turns, round by round, in an order that changes:
// whatever drifts touches all of them.
func (rig *socketRig) measure(ctx context.Context, b *bench, s scenario) error {
	cpus, resent := pairOf(b.results.Settings, s.Connections), uint64(0)
	all := rig.sides(s)
	for _, side := range all {
		if err := side.server.Pin(cpus.Server); err != nil {
			return err
		}
	}
	for round := range b.runs {
		for _, i := range turns(round, len(all)) {
			slice, err := rig.slice(ctx, b, s, cpus.Client, all[i])
			if err != nil {
				return fmt.Errorf("%s: %w", sideNames[i], err)
			}
			s.addSlice(b.results, i, slice)
			if resent += slice.Resent; resent > endpoint.LostMost {
				return fmt.Errorf("%d datagrams were sent again, which is too many for devices that lose none", resent)
			}
		}
	}
	return nil
}

// slice is a moment of traffic on one side, and the proof that it went that
// side's way.
func (rig *socketRig) slice(ctx context.Context, b *bench, s scenario, cpu int, side side) (r endpoint.Result, err error) {
	before, err := rig.hooked.counters()
	if err != nil {
		return r, err
	}
	r, err = endpoint.RunClient(ctx, side.client, endpoint.ClientConfig{
		Mode: s.Mode, Target: side.target, Connections: s.Connections,
		Warmup: b.slice / 10, Measure: b.slice, CPU: cpu,
		Processes: append([]int{side.server.PID()}, rig.softirq...),
	})
	if err != nil {
		return r, err
	}
	after, err := rig.hooked.counters()
	if err != nil {
		return r, err
	}
	if r.Operations == 0 {
		return r, errors.New("nothing was answered in the measured time")
	}
	want := countersOf(side.path, s.Mode, s.Connections, r)
	return r, prove(before, after, want, r.Resent)
}
