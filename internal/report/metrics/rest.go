// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	client "k8s.io/client-go/tools/metrics"
)

// restMetrics are the metrics of requests to the API server.
type restMetrics struct {
	requests, retries               *prometheus.CounterVec
	latency, limiter, sent, receive *prometheus.HistogramVec
}

// requests is one for the process, as client-go's own registry is.
var requests = newRESTMetrics()

func newRESTMetrics() *restMetrics {
	r := &restMetrics{
		requests: counterVec("rest_client_requests_total"), retries: counterVec("rest_client_request_retries_total"),
		latency: histogramVec("rest_client_request_duration_seconds"), limiter: histogramVec("rest_client_rate_limiter_duration_seconds"),
		sent: histogramVec("rest_client_request_size_bytes"), receive: histogramVec("rest_client_response_size_bytes"),
	}
	client.Register(client.RegisterOpts{
		RequestLatency: latency{r.latency}, RateLimiterLatency: latency{r.limiter},
		RequestSize: size{r.sent}, ResponseSize: size{r.receive},
		RequestResult: results{r.requests}, RequestRetry: results{r.retries},
	})
	return r
}

func (r *restMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{r.requests, r.retries, r.latency, r.limiter, r.sent, r.receive}
}

type latency struct{ *prometheus.HistogramVec }

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

type size struct{ *prometheus.HistogramVec }

func (s size) Observe(_ context.Context, verb, host string, octets float64) {
	s.WithLabelValues(verb, host).Observe(octets)
}

type results struct{ *prometheus.CounterVec }

func (r results) Increment(_ context.Context, code, method, host string) {
	r.WithLabelValues(code, method, host).Inc()
}

func (r results) IncrementRetry(_ context.Context, code, verb, host string) {
	r.WithLabelValues(code, verb, host).Inc()
}
