// SPDX-License-Identifier: Apache-2.0

// Package sockets measures connections and datagrams through a ClusterIP: as a whole (the part sockets), the programs
// at the hooks alone (hook), and the statistics (statistics).
package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const part = "sockets"

// Part is the part sockets.
var Part = harness.Part{Name: part, Text: "requests through a ClusterIP beside the direct way", Run: runSockets, Print: printSockets}

// A side is one path to a server.
type side struct {
	client *lab.Host
	server *endpoint.Server
	target netip.AddrPort
	path   path
}

// socketRig is clusters with the same servers: a bare one, one with no-op programs and, by the number of
// Services, those with Beeline, and those with kube-proxy, in nftables mode on node-a and in iptables mode on
// node-b.
type socketRig struct {
	bare, noOp      *harness.World
	hooked, proxied map[int]*harness.World
	softirq         []int
	attached        []io.Closer
}

func runSockets(ctx context.Context, b *harness.Bench) (err error) {
	rig := &socketRig{softirq: harness.SoftirqThreads(), hooked: map[int]*harness.World{}, proxied: map[int]*harness.World{}}
	defer func() { err = errors.Join(err, rig.end()) }()
	if err := rig.setUp(ctx, b); err != nil {
		return err
	}
	for _, s := range scenarios(b.Smoke) {
		if err := rig.measure(ctx, b, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (rig *socketRig) setUp(ctx context.Context, b *harness.Bench) (err error) {
	if rig.bare, err = harness.NewWorld(); err != nil {
		return err
	}
	if err := errors.Join(rig.startServers(ctx, b, rig.bare), rig.bare.ProveHooks(0)); err != nil {
		return err
	}
	if err := rig.addNoOp(ctx, b); err != nil {
		return fmt.Errorf("no-op programs: %w", err)
	}
	for _, services := range []int{fewServices, manyServices(b.Smoke)} {
		if err := rig.addHooked(ctx, b, services); err != nil {
			return fmt.Errorf("%d Services: %w", services, err)
		}
		if controlplane.Find(b.ControlPlane) != nil {
			continue // the printed text omits kube-proxy then
		}
		if err := rig.addProxied(ctx, b, services); err != nil {
			return fmt.Errorf("kube-proxy with %d Services: %w", services, err)
		}
	}
	return nil
}

func (rig *socketRig) startServers(ctx context.Context, b *harness.Bench, w *harness.World) error {
	for _, pod := range []string{"a2", "b1"} {
		if err := w.StartServer(ctx, pod, b.Two.Server); err != nil {
			return err
		}
	}
	return nil
}

// addNoOp adds a cluster whose nodes have no-op programs where Beeline has the edge's.
func (rig *socketRig) addNoOp(ctx context.Context, b *harness.Bench) (err error) {
	if rig.noOp, err = harness.NewWorld(); err != nil {
		return err
	}
	spec, err := testrun.LoadCostTC()
	if err != nil {
		return err
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer collection.Close()
	for _, name := range []string{"node-a", "node-b"} {
		host := rig.noOp.Host(name)
		device, err := harness.DeviceOf(host, "eth0")
		if err != nil {
			return err
		}
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if err := host.Do(func() error {
				l, err := link.AttachTCX(link.TCXOptions{Interface: device.Index, Program: collection.Programs[testrun.CostTCProgCostNothing], Attach: at})
				if err == nil {
					rig.attached = append(rig.attached, l)
				}
				return err
			}); err != nil {
				return fmt.Errorf("host %s: %w", name, err)
			}
		}
	}
	return errors.Join(rig.startServers(ctx, b, rig.noOp), rig.noOp.ProveHooks(0))
}

// addHooked adds a cluster with Beeline and so many Services.
func (rig *socketRig) addHooked(ctx context.Context, b *harness.Bench, services int) error {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	rig.hooked[services] = w
	if err := node.WriteManifest(w.Folder, "services.yaml", socketObjects(w, services)...); err != nil {
		return err
	}
	if err := rig.startServers(ctx, b, w); err != nil {
		return err
	}
	for _, host := range []string{"node-a", "node-b"} {
		if _, err := w.StartAgent(b.Program, host, ""); err != nil {
			return err
		}
	}
	return w.ProveHooks(1)
}

func (rig *socketRig) end() error {
	errs := []error{harness.CloseAll(rig.attached)}
	for _, w := range slices.Concat([]*harness.World{rig.bare, rig.noOp}, slices.Collect(maps.Values(rig.hooked)), slices.Collect(maps.Values(rig.proxied))) {
		if w != nil {
			errs = append(errs, w.End())
		}
	}
	return errors.Join(errs...)
}

// sides are those of a scenario; one without a client does not exist.
func (rig *socketRig) sides(s scenario) [sides]side {
	b, hooked, proxied := backends[s.Backend], rig.hooked[s.Services], rig.proxied[s.Services]
	direct := func(w *harness.World, client, server string, p path) side {
		to := netip.AddrPortFrom(harness.AddressOf(w.Host(server), s.Family), harness.ServerPort)
		return side{w.Host(client), w.Servers[server], to, p}
	}
	service := func(w *harness.World, client, server string, p path) side {
		all := direct(w, client, server, p)
		all.target = serviceOf(server, s.Family)
		return all
	}
	all := [sides]side{
		sideBare:    direct(rig.bare, "a1", b.server, unhooked),
		sideAgain:   direct(rig.bare, "b2", b.again, unhooked),
		sideDirect:  direct(hooked, "a1", b.server, passed),
		sideService: service(hooked, "a1", b.server, balanced),
	}
	if s.Backend == "remote" {
		all[sideNoOp] = direct(rig.noOp, "a1", b.server, unhooked)
	}
	if proxied != nil && !s.Mode.Datagrams() {
		all[sideProxyNFT] = service(proxied, "a1", b.server, unhooked)
		all[sideProxyIPT] = service(proxied, "b2", b.again, unhooked)
	}
	return all
}

// measure runs the sides in turn, round by round, in an order that changes: so any drift affects all of them.
func (rig *socketRig) measure(ctx context.Context, b *harness.Bench, s scenario) error {
	cpus, resent := harness.PairOf(b.Results.Settings, s.Connections), uint64(0)
	all := rig.sides(s)
	for _, side := range all {
		if side.client == nil {
			continue
		}
		if err := side.server.Pin(cpus.Server); err != nil {
			return err
		}
	}
	for round := range b.Runs {
		for _, i := range harness.Turns(round, len(all)) {
			if all[i].client == nil {
				continue
			}
			slice, err := rig.slice(ctx, b, s, cpus.Client, all[i])
			if err != nil {
				return fmt.Errorf("%s: %w", sideNames[i], err)
			}
			s.addSlice(b.Results, i, slice)
			if resent += slice.Resent; resent > endpoint.LostMost {
				return fmt.Errorf("%d datagrams were retransmitted, which is too many for devices that lose none", resent)
			}
		}
	}
	return nil
}

// slice is a short time of traffic on one side. On a busy machine an end may get no CPU at all: such a slice is
// repeated.
func (rig *socketRig) slice(ctx context.Context, b *harness.Bench, s scenario, cpu int, side side) (r endpoint.Result, err error) {
	const tries = 10
	for range tries {
		if r, err = rig.moment(ctx, b, s, cpu, side); err != nil || r.Operations > 0 {
			return r, err
		}
	}
	return r, fmt.Errorf("no reply in %s, %d times in a row", b.Slice, tries)
}

// moment is traffic on one side, and the proof that it took that side's path.
func (rig *socketRig) moment(ctx context.Context, b *harness.Bench, s scenario, cpu int, side side) (r endpoint.Result, err error) {
	before, err := rig.hooked[s.Services].Counters()
	if err != nil {
		return r, err
	}
	r, err = endpoint.RunClient(ctx, side.client, endpoint.ClientConfig{
		Mode: s.Mode, Target: side.target, Connections: s.Connections,
		Warmup: b.Slice / 10, Measure: b.Slice, CPU: cpu,
		Processes: append([]int{side.server.PID()}, rig.softirq...),
	})
	if err != nil {
		return r, err
	}
	after, err := rig.hooked[s.Services].Counters()
	if err != nil {
		return r, err
	}
	want := countersOf(side.path, s.Mode, s.Connections, r)
	return r, prove(before, after, want, r.Resent)
}
