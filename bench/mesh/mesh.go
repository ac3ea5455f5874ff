// SPDX-License-Identifier: Apache-2.0

// Package mesh measures an application and the proxy in its pod.
package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/bench/web"
)

const partName = "mesh"

// Part is the part mesh.
var Part = harness.Part{Name: partName, Text: "an application and the proxy in its pod: by netfilter, by the hook, and past TCP", Run: runMesh, Print: printMesh}

// The sides: connections of a pod by netfilter's REDIRECT to the proxy in it, by the hook at connect(2), by that with
// messages past TCP, and by that with the preload library in client and proxy. The second is the first again: their
// difference is what the measurement cannot see. In the last there is no proxy.
const (
	netfilter = iota
	netfilterAgain
	hook
	sockmap
	meshRings
	none
	sides
)

var names = [sides]string{"netfilter", "netfilter (A/A)", "hook", "hook and sockmap", "hook and rings", "no proxy"}

// pods are where the sides are: on node-a the agent has --mesh-sockmap, on node-b it has not.
var pods = [sides]string{"b2", "b2", "b1", "a1", "b3", "a2"}

const (
	rounds  = 7 // at most
	seconds = 1 // of each run of wrk
)

// A meshTraffic is what wrk requests.
type meshTraffic struct {
	name    string // empty for the first one
	path    string
	length  int  // of answers
	closing bool // each connection has one request
}

var traffics = []meshTraffic{
	{"", "/", web.AnswerLength, false},
	{"answers of 64 KiB", longPath, longAnswer, false},
	{"a connection for each request", "/", web.AnswerLength, true},
}

// A meshCase is a load with a kind of traffic.
type meshCase struct {
	harness.LoadCase
	meshTraffic
}

func (c meshCase) String() string {
	if c.name == "" {
		return c.LoadCase.String()
	}
	return c.name + ", " + c.LoadCase.String()
}

// cases are those of a proxy. The traffics after the first one are measured alone, and with smoke only by one
// proxy.
func cases(smoke bool, proxy string) (all []meshCase) {
	for _, load := range harness.LoadCases(smoke) {
		all = append(all, meshCase{load, traffics[0]})
	}
	if smoke && proxy != smokeProxy {
		return all
	}
	for _, traffic := range traffics[1:] {
		for _, load := range harness.LoadCases(smoke) {
			if !load.Busy && load.Connections <= 64 {
				all = append(all, meshCase{load, traffic})
			}
		}
	}
	return all
}

// smokeProxy needs no program that may be missing.
const smokeProxy = "haproxy"

func series(proxy string, c meshCase, side int) result.Series {
	return result.Series{Part: partName, Scenario: proxy + ", " + c.String(), Side: names[side], Family: "IPv4",
		Parameters: result.Parameters{"connections": c.Connections}}
}

func runMesh(ctx context.Context, b *harness.Bench) (err error) {
	rig, err := newRig(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	for _, p := range proxies(b.Envoy) {
		if !slices.ContainsFunc(cases(b.Smoke, p.name), func(c meshCase) bool { return wants(b, p.name, c) }) {
			continue
		}
		if err := rig.measureProxy(ctx, b, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// wants reports whether --case matches.
func wants(b *harness.Bench, proxy string, c meshCase) bool {
	return b.Only == nil || b.Only.MatchString(fmt.Sprintf("%s %d %s", proxy, c.Connections, c))
}

func (rig *meshRig) measureProxy(ctx context.Context, b *harness.Bench, p meshProxy) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := rig.startProxies(ctx, p); err != nil {
		return err
	}
	defer rig.stopProxies(stop)
	for side := range sides {
		err := rig.prove(ctx, side)
		// The proxies of all sides start together. With the sockmap, programs have to be known.
		if side == 0 || side == sockmap || !b.Smoke {
			err = errors.Join(err, rig.warmUp(ctx, side))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", names[side], err)
		}
	}
	for _, c := range cases(b.Smoke, p.name) {
		if !wants(b, p.name, c) {
			continue
		}
		if err := rig.measureCase(ctx, b, p.name, c); err != nil {
			return fmt.Errorf("%d connections, %s: %w", c.Connections, c, err)
		}
	}
	return nil
}

func (rig *meshRig) measureCase(ctx context.Context, b *harness.Bench, proxy string, c meshCase) error {
	if c.Busy {
		stop, err := harness.StartBusyProgram(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	return harness.InTurns(min(b.Runs, rounds), names[:], func(side int) error { return rig.measure(ctx, b.Results, proxy, c, side) })
}

// warmUp is how long a proxy may take to serve: a second, on a machine that is not busy.
const warmUp = 30 * time.Second

// warmUp runs wrk without a result, until there are answers. Envoy ends connections in the first second after its
// start, and may end all of a run.
func (rig *meshRig) warmUp(ctx context.Context, side int) error {
	for end := time.Now().Add(warmUp); ; {
		r, err := rig.wrk(ctx, side, meshCase{harness.LoadCase{Connections: web.Connections, Busy: false}, traffics[0]})
		if r.Requests > 0 {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("no answer within %v: %w", warmUp, err)
		}
	}
}

// measure runs wrk once.
func (rig *meshRig) measure(ctx context.Context, results *result.File, proxy string, c meshCase, side int) error {
	before, err := rig.skipped(side)
	if err != nil {
		return err
	}
	onRings := rig.countRings(side)
	used := harness.UsageNow()
	r, err := rig.wrk(ctx, side, c)
	busy, rings := harness.UsageNow().Busy-used.Busy, onRings()
	if err != nil {
		return err
	}
	after, err := rig.skipped(side)
	if err != nil {
		return err
	}
	// A request is one message at least, and its answer another.
	if n := after - before; side == sockmap && n < r.Requests {
		return fmt.Errorf("%d messages skipped TCP in %d requests", n, r.Requests)
	}
	if side == meshRings && !c.closing && rings < c.Connections {
		return fmt.Errorf("%d of %d connections were on rings", rings, c.Connections)
	}
	add := func(m result.Metric, value float64) {
		results.AddSide(names[netfilter], series(proxy, c, side), m, value)
	}
	add(harness.MetricPerSecond, float64(r.Requests)/r.Microseconds*1e6)
	add(harness.MetricP50, r.P50)
	add(harness.MetricP90, r.P90)
	if !c.Busy { // of the whole machine
		add(harness.MetricRequestCPU, float64(busy.Microseconds())/float64(r.Requests))
	}
	return nil
}

func printMesh(r *harness.Report) {
	r.Say("\nwrk in a pod, through the proxy in the same pod, to a web server on another host; answers of %d bytes on open connections where nothing else is said. Medians, and ratios to netfilter [95 %% interval]", web.AnswerLength)
	for _, p := range proxies("") {
		for _, c := range cases(false, p.name) {
			printCase(r, p.name, c)
		}
	}
}

func printCase(r *harness.Report, proxy string, c meshCase) {
	of := func(side int, m result.Metric) []float64 { return r.Results.Samples(series(proxy, c, side), m) }
	if len(of(netfilter, harness.MetricPerSecond)) == 0 {
		return
	}
	r.Say("\n  %s, %d at a time, %s", proxy, c.Connections, c)
	r.Say("    %-17s %10s %8s %8s %8s   %-23s %-23s %-23s", "", "per second", "p50 us", "p90 us", "CPU us", "rate", "p90", "CPU")
	for side := range sides {
		ratio := func(m result.Metric) string {
			if len(of(side, m)) == 0 {
				return "-"
			}
			return stat.MedianInterval(stat.Ratios(of(side, m), of(netfilter, m))).String()
		}
		cpu := "-"
		if samples := of(side, harness.MetricRequestCPU); len(samples) > 0 {
			cpu = fmt.Sprintf("%.1f", stat.Median(samples))
		}
		r.Say("    %-17s %10.0f %8.0f %8.0f %8s   %-23s %-23s %-23s", names[side], stat.Median(of(side, harness.MetricPerSecond)),
			stat.Median(of(side, harness.MetricP50)), stat.Median(of(side, harness.MetricP90)), cpu, ratio(harness.MetricPerSecond), ratio(harness.MetricP90), ratio(harness.MetricRequestCPU))
	}
}
