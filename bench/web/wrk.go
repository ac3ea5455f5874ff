// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"beeline.io/beeline/test/lab"
)

const (
	Connections = 100
	Threads     = 2
)

// wrkScript makes wrk print its results as JSON in the last line. It does not handle requests, which would cost
// time.
const wrkScript = `
done = function(summary, latency, requests)
	local e = summary.errors
	print(string.format('{"requests":%d,"bytes":%d,"microseconds":%d,"p50":%d,"p90":%d,"p99":%d,"errors":%d}',
		summary.requests, summary.bytes, summary.duration, latency:percentile(50), latency:percentile(90), latency:percentile(99),
		e.connect + e.read + e.write + e.status + e.timeout))
end
`

// Result is wrk's result; times are in microseconds.
type Result struct {
	Requests     uint64  `json:"requests"`
	Bytes        uint64  `json:"bytes"` // of answers, with their headers
	Microseconds float64 `json:"microseconds"`
	P50          float64 `json:"p50"`
	P90          float64 `json:"p90"`
	P99          float64 `json:"p99"`
	Errors       uint64  `json:"errors"`
}

// Tries is how often wrk runs until it gets a reply.
const Tries = 10

// ErrNoAnswer means that a run is to be repeated.
var ErrNoAnswer = errors.New("wrk got no or few replies")

// Run has a host request a page for some seconds, on connections that stay open.
func Run(ctx context.Context, from *lab.Host, to netip.AddrPort, seconds int) (Result, error) {
	return RunLoad(ctx, from, to, Load{Seconds: seconds, Connections: Connections, Path: "/"}, nil)
}

// A Load is what wrk does.
type Load struct {
	Seconds, Connections int
	Path                 string
	Closing              bool // each connection has one request
}

// RunLoad does so with a load, and with an environment other than this program's if it is not nil.
func RunLoad(ctx context.Context, from *lab.Host, to netip.AddrPort, load Load, environment []string) (Result, error) {
	script := filepath.Join(from.Dir, "wrk.lua")
	if err := os.WriteFile(script, []byte(wrkScript), 0o644); err != nil {
		return Result{}, err
	}
	argv := []string{"wrk", "-t", strconv.Itoa(min(Threads, load.Connections)), "-c", strconv.Itoa(load.Connections),
		"-d", fmt.Sprintf("%ds", load.Seconds), "--timeout", "60s", "-s", script}
	if load.Closing {
		argv = append(argv, "-H", "Connection: close")
	}
	cmd := from.Command(ctx, append(argv, fmt.Sprintf("http://%s%s", to, load.Path))...)
	cmd.Env = environment
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return Result{}, fmt.Errorf("wrk: %w (`make setup` installs it): %s", err, strings.TrimSpace(complaints.String()))
	}
	return parseWrk(string(out))
}

func parseWrk(out string) (r Result, err error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return r, fmt.Errorf("wrk printed no result (%w):\n%s", err, out)
	}
	switch {
	case r.Errors > 0:
		return r, fmt.Errorf("wrk had %d errors in %d requests:\n%s", r.Errors, r.Requests, out)
	case r.Requests == 0 || r.Microseconds <= 0:
		return r, fmt.Errorf("%w:\n%s", ErrNoAnswer, out)
	}
	return r, nil
}
