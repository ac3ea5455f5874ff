// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
)

// scrape returns the lines of a scrape that begin with a prefix.
func scrape(t *testing.T, m *Metrics, prefix string) (lines []string) {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("a scrape is answered with %d: %s", answer.Code, answer.Body)
	}
	for line := range strings.SplitSeq(answer.Body.String(), "\n") {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A component's histogram has its buckets, and what it returns beside an error is served; the failure is counted.
func TestComponentMetrics(t *testing.T) {
	m := New(Options{MaxSeries: 10, Log: slog.New(slog.DiscardHandler)})
	m.Collect("test", func() ([]api.Metric, error) {
		return []api.Metric{{Name: "beeline_test_seconds", Kind: api.HistogramMetric, Help: "x", Labels: Labels("a", "b"),
			Histogram: &api.Histogram{Buckets: []api.Bucket{{UpTo: 0.5, Count: 2}, {UpTo: 1, Count: 3}}, Count: 4, Sum: 9}}}, errors.New("broken")
	})
	want := "[beeline_test_seconds_bucket{a=\"b\",le=\"0.5\"} 2 beeline_test_seconds_bucket{a=\"b\",le=\"1\"} 3 " +
		"beeline_test_seconds_bucket{a=\"b\",le=\"+Inf\"} 4 beeline_test_seconds_sum{a=\"b\"} 9 beeline_test_seconds_count{a=\"b\"} 4]"
	if got := fmt.Sprint(scrape(t, m, "beeline_test_")); got != want {
		t.Errorf("the histogram is served as %s, want %s", got, want)
	}
	scrape(t, m, "")
	if got := scrape(t, m, "beeline_metrics_read_errors_total{"); len(got) != 1 || strings.HasSuffix(got[0], " 0") {
		t.Errorf("failures: %v", got)
	}
}

// The first scrape counts what it leaves out.
func TestMaxSeriesOfFirstScrape(t *testing.T) {
	m := New(Options{MaxSeries: 1, Log: slog.New(slog.DiscardHandler)})
	m.Collect("test", func() (all []api.Metric, err error) {
		time.Sleep(20 * time.Millisecond) // other metrics are collected meanwhile
		for _, n := range []string{"a", "b"} {
			all = append(all, api.Metric{Name: "beeline_test", Kind: api.GaugeMetric, Help: "x", Labels: Labels("n", n), Value: 1})
		}
		return all, nil
	})
	const want = `[beeline_metrics_dropped_series{metric="beeline_test"} 1]`
	if got := fmt.Sprint(scrape(t, m, "beeline_metrics_dropped_series")); got != want {
		t.Errorf("with room for 1 of 2 series the first scrape has %s, want %s", got, want)
	}
}

// The number of series is bounded; those that were exported stay, and the others are counted.
func TestMaxSeries(t *testing.T) {
	m := New(Options{MaxSeries: 2, Log: slog.New(slog.DiscardHandler)})
	names := []string{"c", "b"}
	m.Collect("test", func() (all []api.Metric, err error) {
		for _, n := range names {
			all = append(all, api.Metric{Name: "beeline_test", Kind: api.GaugeMetric, Help: "x", Labels: Labels("n", n), Value: 1})
		}
		return all, nil
	})
	for _, step := range []struct {
		names           string
		served, dropped string
	}{
		{"c b", `[beeline_test{n="b"} 1 beeline_test{n="c"} 1]`, `[]`},
		{"d c b", `[beeline_test{n="b"} 1 beeline_test{n="c"} 1]`, `[beeline_metrics_dropped_series{metric="beeline_test"} 1]`},
		{"a d c b", `[beeline_test{n="b"} 1 beeline_test{n="c"} 1]`, `[beeline_metrics_dropped_series{metric="beeline_test"} 2]`},
		{"a d c", `[beeline_test{n="a"} 1 beeline_test{n="c"} 1]`, `[beeline_metrics_dropped_series{metric="beeline_test"} 1]`},
		{"c", `[beeline_test{n="c"} 1]`, `[beeline_metrics_dropped_series{metric="beeline_test"} 0]`},
	} {
		names = strings.Fields(step.names)
		if got := fmt.Sprint(scrape(t, m, "beeline_test")); got != step.served {
			t.Errorf("with room for 2 series, of %s are served %s, want %s: those that were served before stay", step.names, got, step.served)
		}
		if got := fmt.Sprint(scrape(t, m, "beeline_metrics_dropped_series")); got != step.dropped {
			t.Errorf("with room for 2 series, of %s the metric of those left out is %s, want %s", step.names, got, step.dropped)
		}
	}
}
