// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

// TestLeaving: a backend in no set is shown while it has flows, and always while it is down. Serving backends,
// replies and closed flows do not count.
func TestLeaving(t *testing.T) {
	tables, _ := sharedTables(2, 2) // backends 10.10.0.1 and .2; service ports 1 and 2
	tracks := conntracktest.Table{}
	add := func(port int, id uint32, backend string, state bpf.ConntrackState, flags uint8) {
		client := fmt.Sprintf("198.51.100.7:%d", port)
		key := conntracktest.Tuple(uint8(service.TCP), client, "192.0.2.1:80")
		tracks[key] = bpf.ConntrackEntry{Lb: bpf.EdgeTCCtLb{Service: id}, Xlate: conntracktest.Tuple(uint8(service.TCP), client, backend), State: uint8(state), Flags: flags}
	}
	add(1, 1, "10.10.0.1:8080", bpf.ConntrackEstablished, 0) // serves
	add(2, 1, "10.10.0.9:8080", bpf.ConntrackEstablished, 0)
	add(3, 1, "10.10.0.9:8080", bpf.ConntrackClosing, 0)
	add(4, 1, "10.10.0.9:8080", bpf.ConntrackClosed, 0)
	add(5, 1, "10.10.0.9:8080", bpf.ConntrackEstablished, uint8(bpf.ConntrackReply))
	add(6, 2, "10.10.0.8:8080", bpf.ConntrackEstablished, 0)
	for _, c := range []struct {
		scope Scope
		down  string
		want  string
	}{
		{Scope{Service: "n0/web00000"}, "", "[10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Service: "n0/web00000"}, "10.10.0.9:8080", "[10.10.0.9:8080 down, 2 connections left: timeout]"},
		{Scope{Service: "n0/web00000"}, "10.10.0.7:8080", "[10.10.0.7:8080 down, 0 connections left: timeout 10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Service: "n1/web00001"}, "", "[10.10.0.8:8080 draining, 1 connection left]"},
		{Scope{Outline: true, Owners: true}, "", "[10.10.0.8:8080 draining, 1 connection left 10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Outline: true, Owners: true}, "10.10.0.8:8080", "[10.10.0.8:8080 down, 1 connection left: timeout 10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Outline: true, Owners: true}, "10.10.0.1:8080", "[10.10.0.8:8080 draining, 1 connection left 10.10.0.9:8080 draining, 2 connections left]"},
	} {
		read, err := ReadScope(t.Context(), tables, c.scope)
		if err != nil {
			t.Fatal(err)
		}
		if err := addDraining(read, &conntrack.Tables{Assured: tracks, Unreplied: conntracktest.Table{}}, c.scope); err != nil {
			t.Fatal(err)
		}
		var down []api.BackendHealth
		if c.down != "" {
			down = []api.BackendHealth{{Address: netip.MustParseAddrPort(c.down), Protocol: service.TCP, Why: "timeout"}}
		}
		var all []api.Draining
		if c.scope.Service != "" {
			AddServiceDown(&read.Services[0], &api.Health{Backends: down})
			all = read.Services[0].Draining
		} else {
			AddDown(read, &api.HealthStatus{Down: down})
			all = read.Draining
		}
		var got []string
		for _, l := range all {
			got = append(got, l.Address.String()+" "+l.String())
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%+v, down %q: %v, want %s", c.scope, c.down, got, c.want)
		}
	}
}

// The idle time of a draining backend is that of the connection that was used last; it is by DSR if all of its
// connections are.
func TestRemainingConnections(t *testing.T) {
	var r remaining
	for _, c := range []struct {
		ago     uint32 // seconds
		dsr     bpf.DSR
		atLeast time.Duration
		all     bool // by DSR
	}{
		{600, bpf.DSRIPIP, 600 * time.Second, true},
		{300, bpf.DSRIPIP, 300 * time.Second, true},
		{900, bpf.DSRIPIP, 300 * time.Second, true},
		{900, bpf.DSRNone, 300 * time.Second, false},
	} {
		r.add(&conntrack.Entry{LastSeen: bpf.Now() - c.ago, Dsr: uint8(c.dsr)})
		if r.idle < c.atLeast || r.idle > c.atLeast+200*time.Second || r.dsr != c.all {
			t.Errorf("after one used %d s ago: idle for %v, by DSR %v; want about %v, %v", c.ago, r.idle, r.dsr, c.atLeast, c.all)
		}
	}
}
