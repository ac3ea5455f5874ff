// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/datapath"
)

// Each flow ends when the time of its state has come since either side was last
// heard, and not a second before; both of its records go.
func TestSweep(t *testing.T) {
	hour := uint32(3600)
	for _, c := range []struct {
		name     string
		protocol uint8
		states   [2]int // of the client's record, and the backend's
		timeout  uint32 // seconds
	}{
		{"TCP, half open", tcp, [2]int{none, none}, 60},
		{"UDP, unanswered", udp, [2]int{none, none}, 30},
		{"TCP, established", tcp, [2]int{both, both}, 8 * hour},
		{"UDP, assured", udp, [2]int{both, both}, 120},
		{"TCP, FIN of the client", tcp, [2]int{fin, closing}, 60},
		{"TCP, FIN of the client, told by one record", tcp, [2]int{fin, both}, 60},
		{"TCP, FIN of the backend", tcp, [2]int{closing, fin}, 60},
		{"TCP, FIN of both", tcp, [2]int{over, over}, 10},
		{"TCP, FIN of both at once", tcp, [2]int{fin, fin}, 10},
		{"TCP, RST of the client", tcp, [2]int{over, both}, 10},
		{"TCP, RST of the backend after a FIN", tcp, [2]int{fin, over}, 10},
		{"TCP, the client's record lost", tcp, [2]int{lost, both}, 8 * hour},
		{"TCP, the backend's record lost after a FIN", tcp, [2]int{fin, lost}, 60},
		{"UDP, the backend's record lost", udp, [2]int{both, lost}, 120},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, seen := range [][2]uint32{{100000, 100000}, {100000, 90000}, {90000, 100000}} {
				if c.states[0] == lost {
					seen[1] = 100000
				} else if c.states[1] == lost {
					seen[0] = 100000
				}
				table := flowTable{}
				put(table, c.protocol, client, backend, c.states, seen)
				before := len(table)
				flows := &datapath.Flows{Tracks: table, HalfOpen: flowTable{}}
				sweepWants(t, flows, 100000+c.timeout-1, 0)
				if len(table) != before {
					t.Fatalf("%d of %d records left a second early", len(table), before)
				}
				sweepWants(t, flows, 100000+c.timeout, 1)
				if len(table) != 0 {
					t.Errorf("%d records left: %v", len(table), table)
				}
			}
		})
	}
}

func sweepWants(t *testing.T, flows *datapath.Flows, now uint32, want uint64) {
	t.Helper()
	ended, err := Sweep(flows, DefaultTimeouts, now, nil)
	if err != nil || ended != want {
		t.Fatalf("a sweep at %d ended %d flows, %v; want %d", now, ended, err, want)
	}
}

// With DSR a flow has the client's record alone: its time is that of what the client has
// said, and what has the ends of the backend's answers is none of its own.
func TestSweepOfOneSide(t *testing.T) {
	hour := uint32(3600)
	for _, c := range []struct {
		name     string
		protocol uint8
		state    int
		timeout  uint32
	}{
		{"TCP, half open", tcp, none, 60},
		{"TCP, established", tcp, both, 8 * hour},
		{"TCP, FIN of the client", tcp, fin, 60},
		{"TCP, RST of the client", tcp, over, 10},
		{"UDP, one packet", udp, none, 30},
		{"UDP, more", udp, both, 120},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := flowTable{}
			put(table, c.protocol, client, backend, [2]int{c.state, lost}, [2]uint32{1000, 0})
			var key, stranger datapath.Tuple
			for k, record := range table {
				record.Dsr = uint8(datapath.DSRIPIP)
				table[k], key, stranger = record, k, record.Becomes.Reverse()
			}
			other := table[key]
			other.Dsr, other.State, other.LastSeen = 0, uint8(datapath.TrackEstablished), 1000+c.timeout
			other.Flags, other.Becomes = uint8(datapath.TrackReply), key.Reverse()
			table[stranger] = other
			flows := &datapath.Flows{Tracks: table, HalfOpen: flowTable{}}
			sweepWants(t, flows, 1000+c.timeout-1, 0)
			sweepWants(t, flows, 1000+c.timeout, 1)
			if _, kept := table[stranger]; !kept || len(table) != 1 {
				t.Errorf("left: %v; want the other flow's record", table)
			}
		})
	}
}

// A packet that came after the clock was read is no reason to end its flow.
func TestSweepOfTheFuture(t *testing.T) {
	table := flowTable{}
	put(table, udp, client, backend, [2]int{both, both}, [2]uint32{1001, 1001})
	sweepWants(t, &datapath.Flows{Tracks: table, HalfOpen: flowTable{}}, 1000, 0)
}

// The timeouts are those of the flags.
func TestSweepTimeouts(t *testing.T) {
	table := flowTable{}
	put(table, udp, client, backend, [2]int{both, both}, [2]uint32{1000, 1000})
	flows := &datapath.Flows{Tracks: table, HalfOpen: flowTable{}}
	if ended, err := Sweep(flows, Timeouts{TCP: time.Hour, UDP: 20 * time.Second}, 1020, nil); ended != 1 || err != nil {
		t.Errorf("ended %d flows, %v; want 1", ended, err)
	}
}

// R29, R30: UDP flows whose backend has left end at once, whichever record is found
// and whether or not they were answered; others and TCP flows stay.
func TestEndLeft(t *testing.T) {
	const stays = "10.10.2.12:8080"
	states := [][2]int{{both, both}, {lost, both}, {both, lost}}
	for _, s := range states {
		tracks, half := flowTable{}, flowTable{}
		now := [2]uint32{1, 1}
		put(tracks, udp, client, backend, s, now)
		put(half, udp, "198.51.100.8:40000", backend, s, now)
		put(tracks, udp, "198.51.100.9:40000", stays, s, now)
		put(tracks, tcp, client, backend, s, now)
		kept := len(tracks) / 3 * 2
		flows := &datapath.Flows{Tracks: tracks, HalfOpen: half}
		waits := 0
		serves := func(c datapath.Connection) bool {
			if c.Service != netip.MustParseAddrPort(asked) {
				t.Errorf("asked whether %v serves %v", c.Backend, c.Service)
			}
			return c.Backend == netip.MustParseAddrPort(stays)
		}
		ended, err := EndLeft(flows, serves, func() error { waits++; return nil })
		if err != nil || ended != 2 {
			t.Errorf("records %v: ended %d flows, %v; want 2", s, ended, err)
		}
		if len(half) != 0 || len(tracks) != kept {
			t.Errorf("records %v: %d half open and %d others left, want 0 and %d", s, len(half), len(tracks), kept)
		}
		if waits != 2 {
			t.Errorf("waited %d times for running programs, want before each table", waits)
		}
	}
}

// While a sweep is at a flow that has expired, another flow gets its port, or it goes on itself. What
// the programs have written since stays.
func TestSweepBesidePrograms(t *testing.T) {
	for name, happens := range map[string]func(table flowTable, client, backend datapath.Tuple){
		"another flow has its port": func(table flowTable, client, backend datapath.Tuple) {
			other := table[backend]
			other.Becomes.DestinationPort++
			other.LastSeen = 200000
			table[backend] = other
			delete(table, client)
		},
		"it goes on": func(table flowTable, client, backend datapath.Tuple) {
			for _, key := range []datapath.Tuple{client, backend} {
				record := table[key]
				record.LastSeen = 200000
				table[key] = record
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := flowTable{}
			put(table, tcp, client, backend, [2]int{over, over}, [2]uint32{1000, 1000})
			want := flowTable{}
			asked := 0
			_, err := End(table, func(key datapath.Tuple, record *datapath.Track) bool {
				if record.LastSeen != 1000 {
					return false
				}
				if asked++; asked == 1 {
					one, other := key, record.Becomes.Reverse()
					if record.IsReply() {
						one, other = other, one
					}
					happens(table, one, other)
					maps.Copy(want, table)
				}
				return true
			})
			if err != nil || !maps.Equal(table, want) {
				t.Errorf("left: %v, %v; want %v", table, err, want)
			}
		})
	}
}
