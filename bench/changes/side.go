// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/test/lab"
)

// A changesSide is a Service proxy that was just started, and how to change what it reads.
type changesSide struct {
	name   string
	client *lab.Host // a pod of its node
	pid    int
	begin  time.Time // of its start
	write  func(ctx context.Context, backend *lab.Host) error
	count  int
	pause  time.Duration
	// apart is the time between two connections.
	apart time.Duration
}

// measure waits until the side serves, and changes the Service again and again.
func (c *changesRun) measure(ctx context.Context, s changesSide) error {
	at, err := c.await(ctx, s, changingPods[0])
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	c.add(s, scenarioFirst, harness.MetricTime, milliseconds(at.Sub(s.begin)))
	if c.Smoke {
		s.count = 2
	}
	for i := range s.count {
		if err := harness.Pause(ctx, s.pause); err != nil {
			return err
		}
		pod := changingPods[(i+1)%2]
		begin := time.Now()
		if err := s.write(ctx, c.world.Host(pod)); err != nil {
			return err
		}
		at, err := c.await(ctx, s, pod)
		if err != nil {
			return fmt.Errorf("%s: change %d: %w", s.name, i+1, err)
		}
		c.add(s, scenarioServed, harness.MetricTime, milliseconds(at.Sub(begin)))
	}
	// Restore the Service for the next side.
	if err := s.write(ctx, c.world.Host(changingPods[0])); err != nil {
		return err
	}
	memory, err := harness.MemoryOf(s.pid)
	c.add(s, scenarioServed, harness.MetricResident, memory.Resident)
	c.add(s, scenarioServed, harness.MetricPeak, memory.Peak)
	return err
}

func (c *changesRun) add(s changesSide, scenario string, m result.Metric, value float64) {
	c.Results.Add(result.Row{Metric: m, Series: result.Series{Part: partName, Scenario: scenario, Side: s.name,
		Parameters: result.Parameters{"services": c.many.Services, "endpoints": c.many.Endpoints}}}, value)
}

func printChanges(r *harness.Report) {
	rows, services := r.Results.Of(partName, harness.MetricResident), 0
	if !slices.ContainsFunc(rows, func(row result.Row) bool { return strings.HasPrefix(row.Side, harness.ProxySides) }) {
		r.Say("\nThere was no Kubernetes to run at --controlplane, so only files are measured.")
	}
	for _, row := range rows {
		if n := row.Parameters["services"]; n != services {
			services = n
			r.Say("\n%d Services with %d endpoints each; times in ms, memory in MiB\n", n, row.Parameters["endpoints"])
			r.Say("  %-34s %9s %9s %9s   %18s %5s %9s %9s", "", "start", "change", "p99", "least - most", "n", "resident", "at most")
		}
		times := r.Results.Samples(row.Series, harness.MetricTime)
		start := row.Series
		start.Scenario = scenarioFirst
		r.Say("  %-34s %9.0f %9.1f %9.1f   %8.1f -%8.1f %5d %9.1f %9.1f", row.Side,
			stat.Median(r.Results.Samples(start, harness.MetricTime)), stat.Median(times), stat.Quantile(times, 0.99),
			stat.Quantile(times, 0), stat.Quantile(times, 1), len(times), stat.Median(row.Samples), stat.Median(r.Results.Samples(row.Series, harness.MetricPeak)))
	}
}

// await opens connections to the Service, one after the other, until a pod answers one.
func (c *changesRun) await(ctx context.Context, s changesSide, pod string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*harness.ChangeTimeout)
	defer cancel()
	for {
		answer, err := s.client.Request(ctx, "tcp", fmt.Sprintf("10.96.0.%d:%d", changingNumber, harness.ServicePort), "who")
		at := time.Now()
		if err == nil && answer.Pod == pod {
			return at, nil
		}
		if ctx.Err() != nil {
			return at, fmt.Errorf("no new connection is answered by %s (the last by %q: %w)", pod, answer.Pod, err)
		}
		time.Sleep(s.apart)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// objectOf is a Service and its EndpointSlices.
func objectOf(m *harness.ServiceFolder, number int) (*corev1.Service, []*discoveryv1.EndpointSlice, error) {
	service, slices := &corev1.Service{}, []*discoveryv1.EndpointSlice{}
	for i, text := range strings.Split(m.Text(number, 0), "---\n") {
		if i == 0 {
			if err := yaml.UnmarshalStrict([]byte(text), service); err != nil {
				return nil, nil, err
			}
			continue
		}
		slice := &discoveryv1.EndpointSlice{}
		if err := yaml.UnmarshalStrict([]byte(text), slice); err != nil {
			return nil, nil, err
		}
		slices = append(slices, slice)
	}
	return service, slices, nil
}
