// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// R35: what makes which endpoint unhealthy, and what its body says then. /livez follows neither the Node nor the
// datapath.
func TestProbes(t *testing.T) {
	fault := condition.List{condition.SelfProbeFailed.New("it fails")}
	for _, c := range []struct {
		name           string
		do             func(t *Tracker, wait func(time.Duration))
		healthz, livez int
		v4, v6         bool // healthy, according to /healthz
		reasons        int  // of /healthz
	}{
		{"at the start", func(*Tracker, func(time.Duration)) {}, 200, 200, true, true, 0},
		{"a change that waits", func(t *Tracker, wait func(time.Duration)) {
			t.Queued(service.IPv4)
			wait(late - 1)
			t.Beat()
		}, 200, 200, true, true, 0},
		{"too long", func(t *Tracker, wait func(time.Duration)) {
			t.Queued(service.IPv4)
			wait(late / 2)
			t.Queued(service.IPv4) // the oldest counts
			t.Updated(service.IPv6)
			wait(late / 2)
			t.Beat()
		}, 503, 503, false, true, 1},
		{"until it is in the tables", func(t *Tracker, wait func(time.Duration)) {
			t.Queued(service.IPv4)
			wait(late)
			t.Updated(service.IPv4)
			t.Beat()
		}, 200, 200, true, true, 0},
		{"the loop is wedged", func(t *Tracker, wait func(time.Duration)) { wait(late) }, 503, 503, false, false, 1},
		{"the datapath does not serve", func(t *Tracker, _ func(time.Duration)) { t.SetFaults("probe", fault) }, 503, 200, false, false, 1},
		{"it serves again", func(t *Tracker, _ func(time.Duration)) {
			t.SetFaults("probe", fault)
			t.SetFaults("probe", nil)
		}, 200, 200, true, true, 0},
		{"one of two observers finds that", func(t *Tracker, _ func(time.Duration)) {
			t.SetFaults("probe", fault)
			t.SetFaults("hooks", nil)
		}, 503, 200, false, false, 1},
		{"the Node", func(t *Tracker, _ func(time.Duration)) { t.SetIneligible("tainted") }, 503, 200, true, true, 1},
		{"all of it", func(t *Tracker, wait func(time.Duration)) {
			t.SetIneligible("tainted")
			t.SetFaults("probe", fault)
			wait(late)
		}, 503, 503, false, false, 3},
	} {
		start := time.Now()
		now := start
		tracker := NewTracker(func() time.Time { return now })
		c.do(tracker, func(d time.Duration) { now = now.Add(d) })
		healthz, status := ask(t, tracker, "/healthz")
		livez, live := ask(t, tracker, "/livez")
		if status != c.healthz || live != c.livez || len(healthz.Reasons) != c.reasons {
			t.Errorf("%q: /healthz answers %d with the reasons %q, /livez %d; want %d with %d reasons, and %d (R35)", c.name, status, healthz.Reasons, live, c.healthz, c.reasons, c.livez)
		}
		if healthz.Status["IPv4"].Healthy != c.v4 || healthz.Status["IPv6"].Healthy != c.v6 || healthz.Healthy != (c.v4 && c.v6) || livez.NodeEligible != nil {
			t.Errorf("%q: /healthz says healthy %t, IPv4 %t, IPv6 %t, and /livez has nodeEligible: %t; want %t, %t, %t, false (R35)", c.name, healthz.Healthy,
				healthz.Status["IPv4"].Healthy, healthz.Status["IPv6"].Healthy, livez.NodeEligible != nil, c.v4 && c.v6, c.v4, c.v6)
		}
		if recent := healthz.LastUpdated.Equal(now); recent != (status == 200) && now != start {
			t.Errorf("%q: /healthz answers %d, and was last updated %v ago; want that to be now if, and only if, it answers 200 (R35)", c.name, status, now.Sub(healthz.LastUpdated))
		}
	}
}

func ask(t *testing.T, tracker *Tracker, path string) (body response, status int) {
	t.Helper()
	w := httptest.NewRecorder()
	tracker.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return body, w.Code
}
