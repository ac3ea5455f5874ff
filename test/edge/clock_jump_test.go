// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
)

// ownMachine is set where tests may change what all programs of the machine share: in the emulated machine of
// scripts/kernels.
const ownMachine = "BEELINE_OWN_MACHINE"

// The time of day jumps by a day, ahead and back: connections, UDP flows and clients with session affinity keep
// their backends, changes take effect, the agent is healthy, and no age or duration that it reports has jumped.
func TestClockJumps(t *testing.T) {
	if os.Getenv(ownMachine) == "" {
		t.Skip("it would set the clock of this machine; scripts/kernels runs it in an emulated one")
	}
	w := borrowWorld(t, "--edge-mode=tc", "--audit-interval=1s")
	s, all := w.public("b1", "b2")
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.apply("web", objects(s, all)...)
	backends := map[net.Conn]string{}
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		for _, network := range []string{"tcp", "udp"} {
			conn := w.open(network, to)
			backends[conn] = w.served(conn)
		}
	}
	for round, days := range []int{1, -2, 1} {
		before, metrics := w.status(), w.durations()
		w.jump(days)
		w.eventually("a GC pass and an audit", func() bool {
			now := w.status()
			return !now.Edge.Conntrack.LastGC.Equal(before.Edge.Conntrack.LastGC) && !now.Sync.LastAudit.Equal(before.Sync.LastAudit)
		})
		for conn, backend := range backends {
			again := w.open(conn.RemoteAddr().Network(), conn.RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort())
			if now, affine := w.served(conn), w.served(again); now != backend || affine != backend {
				t.Errorf("after %d days a flow of %s is served by %s, and its client's next one by %s", days, backend, now, affine)
			}
		}
		w.wantFlows(len(backends), uint64(2+round))
		w.apply("other", objects(w.everywhere("other", 2+round, "b1"))...)
		w.wantNothingNew(before, metrics)
	}
}

// jump adds days to the time of day.
func (w *world) jump(days int) {
	w.t.Helper()
	var now unix.Timespec
	w.must(unix.ClockGettime(unix.CLOCK_REALTIME, &now))
	now.Sec += int64(days) * 86400
	w.must(unix.ClockSettime(unix.CLOCK_REALTIME, &now))
}

// wantFlows wants this many flows of the Service in the tables that have sent so many packets: an entry that had
// expired would count from zero.
func (w *world) wantFlows(count int, packets uint64) {
	w.t.Helper()
	for _, f := range w.flows("--service", "default/web") {
		if f.IdleSeconds < 0 || f.IdleSeconds > time.Hour.Seconds() {
			w.t.Errorf("a flow of %s is idle for %v s", f.Client, f.IdleSeconds)
		}
		if f.FromClient.Packets >= packets {
			count--
		}
	}
	if count > 0 {
		w.t.Errorf("%d flows have lost their entries", count)
	}
}

// durations are the values of metrics in seconds that are no points in time.
func (w *world) durations() map[string]float64 {
	w.t.Helper()
	status, text, err := w.get("node-a", netip.MustParseAddrPort(agent.DefaultMetricsAddress), "/metrics")
	if err != nil || status != 200 {
		w.t.Fatalf("/metrics: %d, %v", status, err)
	}
	found := map[string]float64{}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		point := strings.Contains(series, "timestamp") || strings.Contains(series, "_time_seconds")
		if err == nil && !point && strings.Contains(series, "_seconds") && !strings.Contains(series, "_seconds_bucket") {
			found[series] = number
		}
	}
	if len(found) == 0 {
		w.t.Fatalf("no metric in seconds in /metrics:\n%s", text)
	}
	return found
}

// wantNothingNew wants an agent that is healthy and reports nothing but what it reported before, and no duration
// that has grown or shrunk by an hour since.
func (w *world) wantNothingNew(before *api.Status, durations map[string]float64) {
	w.t.Helper()
	known := map[condition.Code]bool{}
	for _, c := range before.Conditions.Wrong() {
		known[c.Code] = true
	}
	for _, c := range w.status().Conditions.Wrong() {
		if !known[c.Code] {
			w.t.Errorf("status reports %s", c)
		}
	}
	if status, body, err := w.get("node-a", netip.MustParseAddrPort("127.0.0.1:10256"), "/healthz"); status != 200 {
		w.t.Errorf("/healthz: %d %s, %v", status, body, err)
	}
	for series, now := range w.durations() {
		if change := math.Abs(now - durations[series]); !(change < time.Hour.Seconds()) && !math.IsNaN(now) {
			w.t.Errorf("%s was %v before the jump and is %v", series, durations[series], now)
		}
	}
}
