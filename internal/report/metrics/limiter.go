// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"beeline.io/beeline/internal/api"
)

// limiter bounds the number of series of each metric, so that many objects neither make a scrape slow nor fill
// Prometheus. A series that was exported once has precedence over new ones: it has no gaps.
type limiter struct {
	max     int
	dropped *prometheus.GaugeVec

	mu sync.Mutex
	// exported holds the series of each metric that has more than max.
	exported map[string]map[string]bool
}

func newLimiter(limit int) *limiter {
	return &limiter{max: limit, dropped: gaugeVec("beeline_metrics_dropped_series"), exported: map[string]map[string]bool{}}
}

func (l *limiter) Describe(to chan<- *prometheus.Desc) { l.dropped.Describe(to) }

func (l *limiter) Collect(to chan<- prometheus.Metric) { l.dropped.Collect(to) }

// admit returns the series that are exported. It may change the order of all.
func (l *limiter) admit(name string, labels []string, all []api.Metric) []api.Metric {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := len(all) - l.max
	if over <= 0 && l.exported[name] == nil {
		return all
	}
	l.dropped.WithLabelValues(name).Set(float64(max(over, 0)))
	keys := make(map[*api.Metric]string, len(all))
	order := make([]*api.Metric, len(all))
	for i := range all {
		order[i] = &all[i]
		keys[&all[i]] = strings.Join(valuesOf(labels, all[i]), "\x00")
	}
	before := l.exported[name]
	slices.SortFunc(order, func(a, b *api.Metric) int {
		if before[keys[a]] != before[keys[b]] {
			return map[bool]int{true: -1, false: 1}[before[keys[a]]]
		}
		return strings.Compare(keys[a], keys[b])
	})
	admitted, now := make([]api.Metric, 0, min(l.max, len(all))), map[string]bool{}
	for _, m := range order[:min(l.max, len(order))] {
		admitted, now[keys[m]] = append(admitted, *m), true
	}
	l.exported[name] = now
	return admitted
}
