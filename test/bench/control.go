// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/bench/stat"
	"beeline.io/beeline/test/node"
)

// controlResult is what the agent needs for many Services.
type controlResult struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpointsOfEach"`
	// In milliseconds, from the start of the process to all Services being in
	// the tables and the programs attached.
	ColdStart []float64 `json:"coldStart"`
	WarmStart []float64 `json:"warmStart"` // over the tables of an earlier agent
	Change    []float64 `json:"change"`    // from the file in its place to the backend in the set
	ChangeCPU float64   `json:"changeCPU"` // of the agent, for each change
	// One second after a cold start; the rest of what is resident is the
	// program and the tables, as far as the agent looks at them.
	ResidentMiB []float64 `json:"residentMiB"`
	OwnMiB      []float64 `json:"ownMiB"` // anonymous: its heap and stacks
	PeakMiB     []float64 `json:"peakMiB"`
}

const (
	coldStarts     = 3
	changes        = 30
	idle           = 100 * time.Millisecond // between changes
	controlTimeout = 60 * time.Second
)

func runControl(ctx context.Context, b *bench) (err error) {
	w, err := newWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.end()) }()
	m := &many{folder: w.folder, services: manyMost, endpoints: endpointsOf, families: []string{"IPv4"}, protocol: corev1.ProtocolTCP}
	starts, count := coldStarts, changes
	if b.smoke {
		m.services, starts, count = 50, 1, 2
	}
	if err := m.write(); err != nil {
		return err
	}
	r := controlResult{Services: m.services, Endpoints: m.endpoints}
	a := &node.Agent{Host: w.Host("node-a"), Program: b.program, Manifests: m.folder}
	w.agents = append(w.agents, a)
	for range starts {
		if err := r.start(ctx, a, m); err != nil {
			return err
		}
	}
	if err := r.change(ctx, a, m, count); err != nil {
		return err
	}
	b.results.Control = append(b.results.Control, r)
	r.print(b)
	return nil
}

// start starts the agent with nothing there, and again with everything there.
func (r *controlResult) start(ctx context.Context, a *node.Agent, m *many) error {
	if a.Running() {
		if err := a.Stop(); err != nil {
			return err
		}
		if _, err := a.CLI("cleanup"); err != nil {
			return fmt.Errorf("cleanup: %w", err)
		}
	}
	cold, err := startTimed(ctx, a, m)
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	r.ColdStart = append(r.ColdStart, cold)
	if err := r.memory(ctx, a); err != nil {
		return err
	}
	if err := a.Stop(); err != nil {
		return err
	}
	warm, err := startTimed(ctx, a, m)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	r.WarmStart = append(r.WarmStart, warm)
	return nil
}

// startTimed waits for the line that says that the agent is ready, and asks it
// no question until then; then it makes sure that all is there.
func startTimed(ctx context.Context, a *node.Agent, m *many) (ms float64, err error) {
	ready := &lineWatch{want: []byte("msg=ready"), seen: make(chan time.Time, 1)}
	a.Log = ready
	begin := time.Now()
	if err := a.StartOnly(); err != nil {
		return 0, err
	}
	at, err := ready.await(ctx, a)
	if err != nil {
		return 0, err
	}
	status, err := a.Status()
	if err != nil {
		return 0, err
	}
	// Each Service has a frontend for its port and one for all others.
	c := status.Counts
	if !status.Sync.Synced || c.Services != m.services || c.Frontends != 2*m.services || c.Backends != m.services*m.endpoints {
		return 0, fmt.Errorf("ready with %+v in the tables; the manifests have %d Services with %d endpoints each", c, m.services, m.endpoints)
	}
	return float64(at.Sub(begin).Microseconds()) / 1e3, nil
}

// memory notes what the agent holds a second after its start.
func (r *controlResult) memory(ctx context.Context, a *node.Agent) error {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	if err != nil {
		return err
	}
	mebibytes := func(field string) float64 {
		_, rest, _ := strings.Cut(string(status), field+":")
		kB, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		n, _ := strconv.ParseFloat(kB, 64)
		return n / 1024
	}
	r.ResidentMiB = append(r.ResidentMiB, mebibytes("VmRSS"))
	r.OwnMiB = append(r.OwnMiB, mebibytes("RssAnon"))
	r.PeakMiB = append(r.PeakMiB, mebibytes("VmHWM"))
	return nil
}

// change gives one Service another endpoint, again and again.
func (r *controlResult) change(ctx context.Context, a *node.Agent, m *many, count int) error {
	tables, err := openView(a.BPFFS())
	if err != nil {
		return err
	}
	defer tables.frontends.Close()
	cpu := endpoint.CPUTime(a.PID())
	for i := range count {
		select {
		case <-time.After(idle):
		case <-ctx.Done():
			return ctx.Err()
		}
		// Its first endpoint goes, and the spare one comes.
		svc, first := i%m.services, m.endpoints
		begin := time.Now()
		if err := m.writeOne(svc, first); err != nil {
			return err
		}
		frontend, backend := m.address("IPv4", svc), m.endpoint("IPv4", svc, first)
		if err := tables.await(ctx, frontend, backend); err != nil {
			return err
		}
		r.Change = append(r.Change, float64(time.Since(begin).Microseconds())/1e3)
	}
	r.ChangeCPU = float64((endpoint.CPUTime(a.PID()) - cpu).Microseconds()) / 1e3 / float64(count)
	return nil
}

func (r *controlResult) print(b *bench) {
	b.say("\n%d Services with %d endpoints each, a file for each Service\n", r.Services, r.Endpoints)
	row := func(what, unit string, values []float64) {
		b.say("  %-44s %9.1f %s   (%.1f - %.1f, n = %d)", what, stat.Median(values), unit, stat.Quantile(values, 0), stat.Quantile(values, 1), len(values))
	}
	row("cold start", "ms ", r.ColdStart)
	row("start over the tables of an earlier agent", "ms ", r.WarmStart)
	row("one endpoint changed until it is in the set", "ms ", r.Change)
	b.say("  %-44s %9.1f ms", "CPU time of the agent for one change", r.ChangeCPU)
	row("resident memory of the agent", "MiB", r.ResidentMiB)
	row("of these its own, not program and tables", "MiB", r.OwnMiB)
	row("the most that was resident", "MiB", r.PeakMiB)
}
