// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// response is the body of /healthz and /livez. The fields before Reasons, their order and when they are omitted
// are those of kube-proxy 1.36 (pkg/proxy/healthcheck).
type response struct {
	// LastUpdated is the present time if the response is 200; otherwise when the tables of either family
	// last had every change.
	LastUpdated  time.Time                 `json:"lastUpdated"`
	CurrentTime  time.Time                 `json:"currentTime"`
	NodeEligible *bool                     `json:"nodeEligible,omitempty"` // only /healthz
	Healthy      bool                      `json:"healthy"`
	Status       map[string]familyResponse `json:"status,omitempty"`
	// Reasons are why the response is not 200.
	Reasons []string `json:"reasons,omitempty"`
}

type familyResponse struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler serves /healthz and /livez.
func (t *Tracker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		body, ok := t.Report().healthz()
		body.write(w, ok)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		body, ok := t.Report().livez()
		body.write(w, ok)
	})
	return mux
}

// healthz is whether load balancers may send new connections to the node.
func (r Report) healthz() (body response, ok bool) {
	eligible := r.Ineligible == ""
	wrong := slices.Concat(r.Stalled, r.Faults)
	body = r.response(wrong)
	body.NodeEligible = &eligible
	if !eligible {
		body.Reasons = append(body.Reasons, r.Ineligible)
	}
	return body, body.Healthy && eligible
}

// livez is whether the agent makes progress. It ignores the Node and the datapath, which a restart of the agent
// does not change.
func (r Report) livez() (body response, ok bool) {
	body = r.response(r.Stalled)
	return body, body.Healthy
}

func (r Report) response(wrong condition.List) response {
	body := response{CurrentTime: r.Time, Healthy: len(wrong) == 0, Status: map[string]familyResponse{}}
	// A fault of the datapath is of both families: the agent cannot tell whose packets it concerns.
	both := len(wrong) > len(r.Stalled)
	for f, state := range r.Families {
		body.Status[f.String()] = familyResponse{state.Updated, !state.Late && !both}
		if state.Updated.After(body.LastUpdated) {
			body.LastUpdated = state.Updated
		}
	}
	for _, c := range wrong {
		body.Reasons = append(body.Reasons, c.String())
	}
	return body
}

// write sends the response as kube-proxy does: without a newline at the end.
func (body *response) write(w http.ResponseWriter, ok bool) {
	setHeaders(w.Header())
	status := http.StatusServiceUnavailable
	if ok {
		status, body.LastUpdated = http.StatusOK, body.CurrentTime
	}
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(status)
	w.Write(text)
}

func setHeaders(h http.Header) {
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
}
