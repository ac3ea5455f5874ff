// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net/netip"
	"time"

	"beeline.io/beeline/internal/probe"
	"beeline.io/beeline/internal/service"
)

// BackendHealth is what its health check says of one endpoint of a Service.
type BackendHealth struct {
	Service  string           `json:"service"` // namespace/name
	Address  netip.AddrPort   `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	// Asked is where the check connects: another port, if the annotation says so.
	Asked netip.AddrPort `json:"asked"`
	Up    bool           `json:"up"`
	// Asking: it has not been asked yet since the agent knows of it.
	Asking bool `json:"asking,omitempty"`
	// Since is when Up became what it is, or when the agent began to ask.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last,omitzero"` // end of the last probe
	// Why is what was wrong in the last probe. That of a backend that is up can have
	// failed, too.
	Why string `json:"why,omitempty"`
}

// String says how it is, and since when.
func (b BackendHealth) String() string {
	since := time.Since(b.Since).Round(time.Second)
	switch {
	case b.Up && b.Asking:
		return "taken for well, not asked yet"
	case b.Up && b.Why != "":
		return fmt.Sprintf("up for %s; the last probe failed: %s", since, b.Why)
	case b.Up:
		return fmt.Sprintf("up for %s", since)
	case b.Asking:
		return "DOWN, not asked yet: it was not served when this agent began"
	case b.Why == "":
		return fmt.Sprintf("DOWN for %s; the last probe was good", since)
	}
	return fmt.Sprintf("DOWN for %s: %s", since, b.Why)
}

// Health is what is known of one Service's backends.
type Health struct {
	Check    string          `json:"check"` // in words
	Backends []BackendHealth `json:"backends"`
}

// HealthStatus is what is known of all backends that are asked.
type HealthStatus struct {
	// Backends counts endpoints of Services, Targets what is asked for them: less,
	// where Services share.
	Backends int             `json:"backends"`
	Targets  int             `json:"targets"`
	Down     []BackendHealth `json:"down,omitempty"`
	Counters probe.Counters  `json:"counters"`
}

// healthComplaints are about backends that are down.
func (s *Status) healthComplaints() []string {
	if s.Health == nil || len(s.Health.Down) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("backends that fail their health check: %d of %d", len(s.Health.Down), s.Health.Backends)}
}
