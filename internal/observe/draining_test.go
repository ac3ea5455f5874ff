// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// TestLeaving: a backend that no set has stays visible while flows go to it, and one that is down in any case;
// what serves, replies and closed flows do not count.
func TestLeaving(t *testing.T) {
	tables, _ := sharedTables(2, 2) // backends 10.10.0.1 and .2; service ports 1 and 2
	tracks := records{}
	add := func(port int, id uint32, backend string, state datapath.TrackState, flags uint8) {
		client := fmt.Sprintf("198.51.100.7:%d", port)
		key := flowTuple(client, "192.0.2.1:80")
		key.Protocol = uint8(service.TCP)
		tracks[key] = datapath.Track{Service: id, Becomes: flowTuple(client, backend), State: uint8(state), Flags: flags}
	}
	add(1, 1, "10.10.0.1:8080", datapath.TrackEstablished, 0) // serves
	add(2, 1, "10.10.0.9:8080", datapath.TrackEstablished, 0)
	add(3, 1, "10.10.0.9:8080", datapath.TrackClosing, 0)
	add(4, 1, "10.10.0.9:8080", datapath.TrackClosed, 0)
	add(5, 1, "10.10.0.9:8080", datapath.TrackEstablished, uint8(datapath.TrackReply))
	add(6, 2, "10.10.0.8:8080", datapath.TrackEstablished, 0)
	for _, c := range []struct {
		scope Scope
		down  string
		want  string
	}{
		{Scope{Service: "n0/web00000"}, "", "[10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Service: "n0/web00000"}, "10.10.0.9:8080", "[10.10.0.9:8080 down, 2 connections left]"},
		{Scope{Service: "n0/web00000"}, "10.10.0.7:8080", "[10.10.0.7:8080 down, 0 connections left 10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Service: "n1/web00001"}, "", "[10.10.0.8:8080 draining, 1 connection left]"},
		{Scope{Outline: true, Owners: true}, "", "[10.10.0.8:8080 draining, 1 connection left 10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Outline: true, Owners: true}, "10.10.0.8:8080", "[10.10.0.8:8080 down, 1 connection left 10.10.0.9:8080 draining, 2 connections left]"},
		{Scope{Outline: true, Owners: true}, "10.10.0.1:8080", "[10.10.0.8:8080 draining, 1 connection left 10.10.0.9:8080 draining, 2 connections left]"},
	} {
		read, err := ReadScope(t.Context(), tables, c.scope)
		if err != nil {
			t.Fatal(err)
		}
		if err := read.addLeaving(&datapath.Flows{Tracks: tracks, HalfOpen: records{}}, c.scope); err != nil {
			t.Fatal(err)
		}
		var down []BackendHealth
		if c.down != "" {
			down = []BackendHealth{{Address: netip.MustParseAddrPort(c.down), Protocol: service.TCP}}
		}
		var all []Leaving
		if c.scope.Service != "" {
			read.Services[0].AddDown(&Health{Backends: down})
			all = read.Services[0].Leaving
		} else {
			read.AddDown(&HealthStatus{Down: down})
			all = read.Leaving
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
