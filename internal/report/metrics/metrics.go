// SPDX-License-Identifier: Apache-2.0

// Package metrics serves the agent's metrics in the formats of Prometheus: its own, those of its components, and
// those of kube-proxy 1.36 that mean something here, under kube-proxy's names.
//
// families.go declares every metric, absent.go lists what kube-proxy has and Beeline has not;
// docs/operate/metrics.md is generated from both.
package metrics

import (
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"beeline.io/beeline/internal/api"
)

// Limits of scrapes. Two Prometheus servers and a person may ask at the same time.
const (
	maxScrapes    = 4
	scrapeTimeout = 30 * time.Second
)

// DefaultMaxSeries is the default for Options.MaxSeries.
const DefaultMaxSeries = 10000

// Options configure Metrics.
type Options struct {
	Version string
	Started time.Time
	// MaxSeries is the maximum number of series of each metric of Collect.
	MaxSeries int
	Log       *slog.Logger
}

// Metrics are the metrics of an agent. All methods may be called from any goroutine.
type Metrics struct {
	// Proxy are those with the names of kube-proxy.
	Proxy *Proxy

	registry *prometheus.Registry
	log      *slog.Logger
	limit    *limiter

	failures *prometheus.CounterVec
	mu       sync.Mutex
	failed   map[string]string // by source, the last error that was logged
}

// New returns metrics without those of Collect.
func New(o Options) *Metrics {
	m := &Metrics{
		Proxy: newProxy(o.Started), registry: prometheus.NewRegistry(), log: o.Log,
		limit: newLimiter(o.MaxSeries), failures: counterVec("beeline_metrics_read_errors_total"), failed: map[string]string{},
	}
	build := gaugeVec("beeline_build_info")
	build.WithLabelValues(o.Version, runtime.Version()).Set(1)
	started := gauge("beeline_start_time_seconds")
	started.Set(Seconds(o.Started))
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build, started, m.failures)
	m.registry.MustRegister(m.Proxy.collectors()...)
	m.registry.MustRegister(requests.collectors()...)
	return m
}

// Collect adds metrics that are read at each scrape. source names what they are read from, in the log and in
// beeline_metrics_read_errors_total. What read returns beside an error is served.
func (m *Metrics) Collect(source string, read func() ([]api.Metric, error)) {
	m.failures.WithLabelValues(source)
	m.registry.MustRegister(&collector{Metrics: m, source: source, read: read})
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	limits := prometheus.NewRegistry() // gathered after all series are
	limits.MustRegister(m.limit)
	return promhttp.InstrumentMetricHandler(m.registry, promhttp.HandlerFor(prometheus.Gatherers{m.registry, limits}, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout,
	}))
}

// noteFailure counts a failure, and logs it if it is new.
func (m *Metrics) noteFailure(source string, err error) {
	text := ""
	if err != nil {
		m.failures.WithLabelValues(source).Inc()
		text = err.Error()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && m.failed[source] != text {
		m.log.Error("some metrics cannot be read, and are missing in /metrics", "source", source, "error", err)
	}
	m.failed[source] = text
}
