// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"beeline.io/beeline/internal/cluster/service"
)

// Proxy are the metrics with kube-proxy's names. A sync is one change of the tables, from the objects to the last
// row. It writes both families, so it counts for each value of the label ip_family.
type Proxy struct {
	syncs, full, partial, programming *prometheus.HistogramVec
	queued, synced                    *prometheus.GaugeVec
	endpoints, services               prometheus.Counter
	endpointsPending, servicesPending prometheus.Gauge
	healthz, livez                    *prometheus.CounterVec
	noLocal                           *prometheus.GaugeVec
	conntrack                         *prometheus.HistogramVec
	conntrackDeleted                  *prometheus.CounterVec

	started time.Time

	mu     sync.Mutex
	state  func() State
	lacks  map[service.Ref]service.LocalPorts
	totals service.LocalPorts
}

// State is what Proxy reads at each scrape.
type State struct {
	// LastSuccess is when the tables last held all that was wanted.
	LastSuccess time.Time
	// Services and Endpoints are the numbers of Services and EndpointSlices whose change has arrived and
	// waits for the next sync.
	Services, Endpoints int
}

func newProxy(started time.Time) *Proxy {
	return &Proxy{
		started:          started,
		syncs:            histogramVec("kubeproxy_sync_proxy_rules_duration_seconds"),
		full:             histogramVec("kubeproxy_sync_full_proxy_rules_duration_seconds"),
		partial:          histogramVec("kubeproxy_sync_partial_proxy_rules_duration_seconds"),
		programming:      histogramVec("kubeproxy_network_programming_duration_seconds"),
		queued:           gaugeVec("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"),
		synced:           gaugeVec("kubeproxy_sync_proxy_rules_last_timestamp_seconds"),
		endpoints:        counter("kubeproxy_sync_proxy_rules_endpoint_changes_total"),
		services:         counter("kubeproxy_sync_proxy_rules_service_changes_total"),
		endpointsPending: gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending"),
		servicesPending:  gauge("kubeproxy_sync_proxy_rules_service_changes_pending"),
		healthz:          counterVec("kubeproxy_proxy_healthz_total"),
		livez:            counterVec("kubeproxy_proxy_livez_total"),
		noLocal:          gaugeVec("kubeproxy_sync_proxy_rules_no_local_endpoints_total"),
		conntrack:        histogramVec("kubeproxy_conntrack_reconciler_sync_duration_seconds"),
		conntrackDeleted: counterVec("kubeproxy_conntrack_reconciler_deleted_entries_total"),
		lacks:            map[service.Ref]service.LocalPorts{},
	}
}

// SetState sets the source of State.
func (p *Proxy) SetState(state func() State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

// Queued counts changed objects that arrive at the loop.
func (p *Proxy) Queued(changes []service.Change) {
	for _, c := range changes {
		switch c.Ref.Kind {
		case service.KindService:
			p.services.Inc()
		case service.KindEndpointSlice:
			p.endpoints.Inc()
		}
	}
	for _, f := range service.Families {
		p.queued.WithLabelValues(f.String()).SetToCurrentTime()
	}
}

// Synced records a sync that began at a time. full means that all of the tables was compared.
func (p *Proxy) Synced(begin time.Time, full bool) {
	kind := p.partial
	if full {
		kind = p.full
	}
	seconds := time.Since(begin).Seconds()
	for _, f := range service.Families {
		p.syncs.WithLabelValues(f.String()).Observe(seconds)
		kind.WithLabelValues(f.String()).Observe(seconds)
	}
}

// Programmed records that the tables hold what a change of a pod or Service led to.
// A change before the agent's start is not measured.
func (p *Proxy) Programmed(t service.Trigger) {
	if t.At.Before(p.started) {
		return
	}
	p.programming.WithLabelValues(t.Family.String()).Observe(time.Since(t.At).Seconds())
}

// Planned counts the Service ports of changed plans that have endpoints, but none for a policy of Local.
func (p *Proxy) Planned(plans map[service.Ref]*service.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ref, plan := range plans {
		p.totals.Subtract(p.lacks[ref])
		lacks := plan.WithoutLocalEndpoints()
		if p.totals.Add(lacks); lacks == (service.LocalPorts{}) {
			delete(p.lacks, ref)
		} else {
			p.lacks[ref] = lacks
		}
	}
	for i, f := range service.Families {
		p.noLocal.WithLabelValues("internal", f.String()).Set(float64(p.totals.Internal[i]))
		p.noLocal.WithLabelValues("external", f.String()).Set(float64(p.totals.External[i]))
	}
}

// Reconciled records one deletion of UDP flows whose backend no longer serves, and the flows deleted.
func (p *Proxy) Reconciled(took time.Duration, deleted map[service.Family]uint64) {
	for _, f := range service.Families {
		p.conntrack.WithLabelValues(f.String()).Observe(took.Seconds())
		p.conntrackDeleted.WithLabelValues(f.String()).Add(float64(deleted[f]))
	}
}

// CountProbes counts the answers to /healthz and /livez by their code.
func (p *Proxy) CountProbes(next http.Handler) http.Handler {
	counters := map[string]*prometheus.CounterVec{"/healthz": p.healthz, "/livez": p.livez}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counter := counters[r.URL.Path]
		if counter == nil {
			next.ServeHTTP(w, r)
			return
		}
		answer := &statusWriter{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(answer, r)
		counter.WithLabelValues(strconv.Itoa(answer.code)).Inc()
	})
}

// statusWriter remembers the code of a response.
type statusWriter struct {
	http.ResponseWriter
	code int
}

func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// collectors returns what the registry collects; those of State are read first.
func (p *Proxy) collectors() []prometheus.Collector {
	return []prometheus.Collector{p.syncs, p.full, p.partial, p.programming, p.queued, p.endpoints, p.services,
		p.healthz, p.livez, p.noLocal, p.conntrack, p.conntrackDeleted, stateCollector{p}}
}

// stateCollector exports State.
type stateCollector struct{ *Proxy }

func (c stateCollector) gauges() []prometheus.Collector {
	return []prometheus.Collector{c.synced, c.endpointsPending, c.servicesPending}
}

func (c stateCollector) Describe(to chan<- *prometheus.Desc) {
	for _, g := range c.gauges() {
		g.Describe(to)
	}
}

func (c stateCollector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return
	}
	state := c.state()
	c.endpointsPending.Set(float64(state.Endpoints))
	c.servicesPending.Set(float64(state.Services))
	for _, f := range service.Families {
		if !state.LastSuccess.IsZero() {
			c.synced.WithLabelValues(f.String()).Set(Seconds(state.LastSuccess))
		}
	}
	for _, g := range c.gauges() {
		g.Collect(to)
	}
}
