// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/netip"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/part/healthcheck"
)

// BackendHealth is the health check result of one endpoint of a Service.
type BackendHealth struct {
	Service  string           `json:"service"` // namespace/name
	Address  netip.AddrPort   `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	// CheckAddress is the address that is probed. An annotation can set another port than Address has.
	CheckAddress netip.AddrPort `json:"checkAddress"`
	// ProbePath is set if probes take the path of clients' packets; empty for plain routing.
	ProbePath string `json:"probePath,omitempty"`
	Up        bool   `json:"up"`
	// CheckPending means that the endpoint has not been probed since the agent started its check.
	CheckPending bool `json:"checkPending,omitempty"`
	// Since is when Up last changed, or when the checks started.
	Since     time.Time `json:"since"`
	LastProbe time.Time `json:"lastProbe,omitzero"` // end of the last probe
	// Why is why the last probe failed. It may be set for a backend that is up.
	Why string `json:"why,omitempty"`
}

// String returns the state and how long it has lasted.
func (b BackendHealth) String() string {
	since := time.Since(b.Since).Round(time.Second)
	switch {
	case b.Up && b.CheckPending:
		return "assumed healthy, not probed yet"
	case b.Up && b.Why != "":
		return fmt.Sprintf("up for %s; the last probe failed: %s", since, b.Why)
	case b.Up:
		return fmt.Sprintf("up for %s", since)
	case b.CheckPending:
		return "DOWN, not probed yet: it was not served when this agent started"
	case b.Why == "":
		return fmt.Sprintf("DOWN for %s; the last probe succeeded", since)
	}
	return fmt.Sprintf("DOWN for %s: %s", since, b.Why)
}

// Health holds the health check results of one Service.
type Health struct {
	Check    string          `json:"check"` // the check as text
	Backends []BackendHealth `json:"backends"`
}

// HealthStatus sums up all probed backends.
type HealthStatus struct {
	// Backends counts endpoints of Services. Targets counts what is probed: fewer if Services share
	// targets.
	Backends int `json:"backends"`
	Targets  int `json:"targets"`
	// Services counts the endpoints with a check by Service, as namespace/name.
	Services map[string]int       `json:"services,omitempty"`
	Down     []BackendHealth      `json:"down,omitempty"`
	Counters healthcheck.Counters `json:"counters"`
}
