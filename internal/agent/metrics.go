// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io"
	"net/http"
)

// metricsHandler serves what monitoring reads.
func (a *Agent) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "beeline") })
	return mux
}
