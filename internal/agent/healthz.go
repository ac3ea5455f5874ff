// SPDX-License-Identifier: Apache-2.0

package agent

import "net/http"

// healthzHandler serves the probes of the agent.
func (a *Agent) healthzHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	return mux
}
