// SPDX-License-Identifier: Apache-2.0

// Package control measures the agent with many Services.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const partName = "control"

// Part is the part control.
var Part = harness.Part{Name: partName, Text: "start, change and memory of the agent with many Services", Run: runControl, Print: printControl}

// What the agent needs for many Services.
const (
	// From the start of the process until all Services are in the tables and the programs are attached; the
	// memory is measured one second later.
	scenarioCold   = "cold start"
	scenarioWarm   = "start over the tables of an earlier agent"
	scenarioChange = "one endpoint changed" // until the backend is in the set
	// The same, beside a scrape that begins with the change.
	scenarioScraped = "one endpoint changed, metrics read"
	scenarioScrape  = "metrics read" // the scrape itself
)

var (
	// For the agent, per change, over all of them.
	metricAgentCPU = result.Metric{Name: "CPU time", Unit: "ms", Better: result.Lower}
	metricOwn      = result.Metric{Name: "anonymous memory", Unit: "MiB", Better: result.Lower}
)

// controlRun is one run of the part.
type controlRun struct {
	results *result.File
	many    *harness.ServiceFolder
	agent   *node.Agent
}

func (r *controlRun) add(scenario string, m result.Metric, value float64) {
	r.results.Add(result.Row{Metric: m, Series: result.Series{Part: partName, Scenario: scenario, Side: harness.SideBeeline,
		Parameters: result.Parameters{"services": r.many.Services, "endpoints": r.many.Endpoints}}}, value)
}

const (
	coldStarts = 3
	changes    = 30
	idle       = 100 * time.Millisecond // between changes
)

func runControl(ctx context.Context, b *harness.Bench) (err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.End()) }()
	m := &harness.ServiceFolder{Folder: w.Folder, Services: harness.MostServices, Endpoints: harness.EndpointsPerService, Families: []string{"IPv4"}, Protocol: corev1.ProtocolTCP}
	starts, count := coldStarts, changes
	if b.Smoke {
		m.Services, starts, count = 50, 1, 2
	}
	if err := m.Write(); err != nil {
		return err
	}
	a := &node.Agent{Host: w.Host("node-a"), Program: b.Program, Manifests: m.Folder}
	w.Agents = append(w.Agents, a)
	r := &controlRun{b.Results, m, a}
	for range starts {
		if err := r.start(ctx); err != nil {
			return err
		}
	}
	return r.change(ctx, count)
}

// start starts the agent on a fresh node, and again over complete tables.
func (r *controlRun) start(ctx context.Context) error {
	a := r.agent
	if a.Running() {
		if err := a.Stop(); err != nil {
			return err
		}
		if _, err := a.CLI("cleanup"); err != nil {
			return fmt.Errorf("cleanup: %w", err)
		}
	}
	cold, err := startTimed(ctx, a, r.many)
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	r.add(scenarioCold, harness.MetricTime, cold)
	if err := r.memory(ctx); err != nil {
		return err
	}
	if err := a.Stop(); err != nil {
		return err
	}
	warm, err := startTimed(ctx, a, r.many)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	r.add(scenarioWarm, harness.MetricTime, warm)
	return nil
}

// startTimed waits for the line that says that the agent is ready, without any request until then; then it
// checks that everything is in the tables.
func startTimed(ctx context.Context, a *node.Agent, m *harness.ServiceFolder) (ms float64, err error) {
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
	if !status.Sync.Synced || c.Services != m.Services || c.Frontends != 2*m.Services || c.Backends != m.Services*m.Endpoints {
		return 0, fmt.Errorf("ready with %+v in the tables; the manifests have %d Services with %d endpoints each", c, m.Services, m.Endpoints)
	}
	return float64(at.Sub(begin).Microseconds()) / 1e3, nil
}

// memory measures the agent's memory a second after its start.
func (r *controlRun) memory(ctx context.Context) error {
	if err := harness.Pause(ctx, time.Second); err != nil {
		return err
	}
	memory, err := harness.MemoryOf(r.agent.PID())
	r.add(scenarioCold, harness.MetricResident, memory.Resident)
	r.add(scenarioCold, metricOwn, memory.Anonymous)
	r.add(scenarioCold, harness.MetricPeak, memory.Peak)
	return err
}

// change gives one Service after the other another endpoint, in turn with and without a scrape at the same time.
func (r *controlRun) change(ctx context.Context, count int) error {
	a := r.agent
	tables, err := openView(a.BPFFS())
	if err != nil {
		return err
	}
	defer tables.frontends.Close()
	var cpu time.Duration
	for i := range 2 * count {
		begin := endpoint.CPUTime(a.PID())
		if err := harness.Pause(ctx, idle); err != nil {
			return err
		}
		if i%2 == 1 {
			if err := r.changeScraped(ctx, tables, i); err != nil {
				return err
			}
			continue
		}
		if err := r.changeOne(ctx, tables, i, scenarioChange); err != nil {
			return err
		}
		cpu += endpoint.CPUTime(a.PID()) - begin
	}
	r.add(scenarioChange, metricAgentCPU, float64(cpu.Microseconds())/1e3/float64(count))
	return nil
}

// changeOne removes the first endpoint of a Service and adds the spare one.
func (r *controlRun) changeOne(ctx context.Context, tables *view, n int, scenario string) error {
	m := r.many
	svc, first := n%m.Services, m.Endpoints
	begin := time.Now()
	if err := m.WriteOne(svc, first); err != nil {
		return err
	}
	if err := tables.await(ctx, m.Address("IPv4", svc), m.Endpoint("IPv4", svc, first)); err != nil {
		return err
	}
	r.add(scenario, harness.MetricTime, float64(time.Since(begin).Microseconds())/1e3)
	return nil
}

// changeScraped is changeOne beside a scrape.
func (r *controlRun) changeScraped(ctx context.Context, tables *view, n int) error {
	var took time.Duration
	scraped := make(chan error, 1)
	go func() {
		begin := time.Now()
		err := scrape(ctx, r.agent.Host)
		took = time.Since(begin)
		scraped <- err
	}()
	err := errors.Join(r.changeOne(ctx, tables, n, scenarioScraped), <-scraped)
	r.add(scenarioScrape, harness.MetricTime, float64(took.Microseconds())/1e3)
	return err
}

// scrape reads the metrics of a host's agent.
func scrape(ctx context.Context, host *lab.Host) error {
	client := http.Client{Transport: &http.Transport{DialContext: host.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+agent.DefaultMetricsAddress+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("/metrics: %s, %v", response.Status, err)
	}
	return nil
}

func printControl(r *harness.Report) {
	cold := r.Results.Of(partName, harness.MetricResident)[0].Series
	r.Say("\n%d Services with %d endpoints each, a file for each Service\n", cold.Parameters["services"], cold.Parameters["endpoints"])
	for _, row := range []struct {
		text, scenario string
		metric         result.Metric
	}{
		{"cold start", scenarioCold, harness.MetricTime},
		{"start over the tables of an earlier agent", scenarioWarm, harness.MetricTime},
		{"one endpoint changed until it is in the set", scenarioChange, harness.MetricTime},
		{"the same beside a scrape of /metrics", scenarioScraped, harness.MetricTime},
		{"that scrape", scenarioScrape, harness.MetricTime},
		{"CPU time of the agent for one change", scenarioChange, metricAgentCPU},
		{"resident memory of the agent", scenarioCold, harness.MetricResident},
		{"of these its own, not program and tables", scenarioCold, metricOwn},
		{"the most that was resident", scenarioCold, harness.MetricPeak},
	} {
		series := cold
		series.Scenario = row.scenario
		values := r.Results.Samples(series, row.metric)
		if len(values) == 0 {
			continue // of an earlier version
		}
		r.Say("  %-44s %9.1f %-3s   (%.1f - %.1f, n = %d)", row.text, stat.Median(values), row.metric.Unit,
			stat.Quantile(values, 0), stat.Quantile(values, 1), len(values))
	}
}
