// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP

	client, backend = "198.51.100.7:40000", "10.10.2.11:8080"
)

// A flow expires when the timeout of its state has passed since the last packet of either side, and not a
// second earlier; both of its conntrack entries are deleted.
func TestGC(t *testing.T) {
	hour := uint32(3600)
	for _, c := range []struct {
		name     string
		protocol uint8
		states   [2]int // of the client's entry, and the backend's
		timeout  uint32 // seconds
	}{
		{"TCP, half open", tcp, [2]int{conntracktest.New, conntracktest.New}, 60},
		{"UDP, unanswered", udp, [2]int{conntracktest.New, conntracktest.New}, 30},
		{"TCP, established", tcp, [2]int{conntracktest.Both, conntracktest.Both}, 8 * hour},
		{"UDP, assured", udp, [2]int{conntracktest.Both, conntracktest.Both}, 120},
		{"TCP, FIN of the client", tcp, [2]int{conntracktest.FIN, conntracktest.Closing}, hour},
		{"TCP, FIN of the client, in one entry", tcp, [2]int{conntracktest.FIN, conntracktest.Both}, hour},
		{"TCP, FIN of the backend", tcp, [2]int{conntracktest.Closing, conntracktest.FIN}, hour},
		{"TCP, FIN of both", tcp, [2]int{conntracktest.Closed, conntracktest.Closed}, 120},
		{"TCP, FIN of both at once", tcp, [2]int{conntracktest.FIN, conntracktest.FIN}, 120},
		{"TCP, RST of the client", tcp, [2]int{conntracktest.Closed, conntracktest.Both}, 120},
		{"TCP, RST of the backend after a FIN", tcp, [2]int{conntracktest.FIN, conntracktest.Closed}, 120},
		{"TCP, the client's entry lost", tcp, [2]int{conntracktest.Lost, conntracktest.Both}, 8 * hour},
		{"TCP, the backend's entry lost after a FIN", tcp, [2]int{conntracktest.FIN, conntracktest.Lost}, hour},
		{"UDP, the backend's entry lost", udp, [2]int{conntracktest.Both, conntracktest.Lost}, 120},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, seen := range [][2]uint32{{100000, 100000}, {100000, 90000}, {90000, 100000}} {
				if c.states[0] == conntracktest.Lost {
					seen[1] = 100000
				} else if c.states[1] == conntracktest.Lost {
					seen[0] = 100000
				}
				table := conntracktest.Table{}
				table.Put(c.protocol, client, backend, c.states, seen)
				before := len(table)
				flows := &Tables{Assured: table, Unreplied: conntracktest.Table{}}
				collects(t, flows, 100000+c.timeout-1, 0)
				if len(table) != before {
					t.Fatalf("%d of %d entries left a second early", len(table), before)
				}
				collects(t, flows, 100000+c.timeout, 1)
				if len(table) != 0 {
					t.Errorf("%d entries left: %v", len(table), table)
				}
			}
		})
	}
}

func collects(t *testing.T, flows *Tables, now uint32, want uint64) {
	t.Helper()
	ended, err := CollectGarbage(flows, DefaultTimeouts, now, nil)
	if err != nil || ended != want {
		t.Fatalf("a GC pass at %d ended %d flows, %v; want %d", now, ended, err, want)
	}
}

// With DSR a flow has only the client's entry: its state depends only on what the client has sent, and an
// entry with the addresses of the backend's replies belongs to another flow.
func TestGCOfOneSide(t *testing.T) {
	hour := uint32(3600)
	for _, c := range []struct {
		name     string
		protocol uint8
		state    int
		timeout  uint32
	}{
		{"TCP, half open", tcp, conntracktest.New, 60},
		{"TCP, established", tcp, conntracktest.Both, 8 * hour},
		{"TCP, FIN of the client", tcp, conntracktest.FIN, 60},
		{"TCP, RST of the client", tcp, conntracktest.Closed, 120},
		{"UDP, one packet", udp, conntracktest.New, 30},
		{"UDP, more", udp, conntracktest.Both, 120},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := conntracktest.Table{}
			table.Put(c.protocol, client, backend, [2]int{c.state, conntracktest.Lost}, [2]uint32{1000, 0})
			var key, stranger Tuple
			for k, entry := range table {
				entry.Dsr = uint8(bpf.DSRIPIP)
				table[k], key, stranger = entry, k, entry.Xlate.Reverse()
			}
			other := table[key]
			other.Dsr, other.State, other.LastSeen = 0, uint8(bpf.ConntrackEstablished), 1000+c.timeout
			other.Flags, other.Xlate = uint8(bpf.ConntrackReply), key.Reverse()
			table[stranger] = other
			flows := &Tables{Assured: table, Unreplied: conntracktest.Table{}}
			collects(t, flows, 1000+c.timeout-1, 0)
			collects(t, flows, 1000+c.timeout, 1)
			if _, kept := table[stranger]; !kept || len(table) != 1 {
				t.Errorf("left: %v; want the other flow's entry", table)
			}
		})
	}
}

// A flow has lost its SNAT port to another flow: the entry at that port keeps neither its flow's other entry, nor is it
// deleted with it.
func TestGCOfALostPort(t *testing.T) {
	table := conntracktest.Table{}
	table.Put(tcp, client, backend, [2]int{conntracktest.Closed, conntracktest.Closed}, [2]uint32{1000, 1000})
	port := conntracktest.Tuple(tcp, backend, conntracktest.Seen)
	other := table[port]
	other.State, other.LastSeen = uint8(bpf.ConntrackEstablished), 1100
	other.Xlate.DestinationPort++
	table[port] = other
	flows := &Tables{Assured: table, Unreplied: conntracktest.Table{}}
	collects(t, flows, 1000+119, 0)
	collects(t, flows, 1000+120, 1)
	if _, kept := table[port]; !kept || len(table) != 1 {
		t.Errorf("left: %v; want the other flow's entry", table)
	}
}

// A packet that arrives after the clock was read does not end its flow.
func TestGCOfTheFuture(t *testing.T) {
	table := conntracktest.Table{}
	table.Put(udp, client, backend, [2]int{conntracktest.Both, conntracktest.Both}, [2]uint32{1001, 1001})
	collects(t, &Tables{Assured: table, Unreplied: conntracktest.Table{}}, 1000, 0)
}

// The timeouts are those of the flags.
func TestGCTimeouts(t *testing.T) {
	table := conntracktest.Table{}
	table.Put(udp, client, backend, [2]int{conntracktest.Both, conntracktest.Both}, [2]uint32{1000, 1000})
	flows := &Tables{Assured: table, Unreplied: conntracktest.Table{}}
	if ended, err := CollectGarbage(flows, Timeouts{TCPEstablished: time.Hour, UDPStream: 20 * time.Second}, 1020, nil); ended != 1 || err != nil {
		t.Errorf("ended %d flows, %v; want 1", ended, err)
	}
}

// R29, R30: UDP flows whose backend was removed are deleted immediately, whichever entry is found and
// whether or not they were replied to; others and TCP flows stay.
func TestDeleteStaleUDP(t *testing.T) {
	const stays = "10.10.2.12:8080"
	states := [][2]int{{conntracktest.Both, conntracktest.Both}, {conntracktest.Lost, conntracktest.Both}, {conntracktest.Both, conntracktest.Lost}}
	for _, s := range states {
		tracks, half := conntracktest.Table{}, conntracktest.Table{}
		now := [2]uint32{1, 1}
		tracks.Put(udp, client, backend, s, now)
		half.Put(udp, "198.51.100.8:40000", backend, s, now)
		tracks.Put(udp, "198.51.100.9:40000", stays, s, now)
		tracks.Put(tcp, client, backend, s, now)
		kept := len(tracks) / 3 * 2
		flows := &Tables{Assured: tracks, Unreplied: half}
		waits := 0
		serves := func(c bpf.Connection) bool {
			if c.Service != netip.MustParseAddrPort(conntracktest.Asked) {
				t.Errorf("asked whether %v serves %v", c.Backend, c.Service)
			}
			return c.Backend == netip.MustParseAddrPort(stays)
		}
		deleted, err := DeleteStaleUDP(flows, serves, func() error { waits++; return nil })
		if ended := deleted.Total(); err != nil || ended != 2 {
			t.Errorf("entries %v: ended %d flows, %v; want 2", s, ended, err)
		}
		if len(half) != 0 || len(tracks) != kept {
			t.Errorf("entries %v: %d half open and %d others left, want 0 and %d", s, len(half), len(tracks), kept)
		}
		if waits != 2 {
			t.Errorf("waited %d times for running programs, want before each table", waits)
		}
	}
}

// While a GC pass deletes an expired flow, another flow gets its port, or it has another packet. What the
// programs have written since stays.
func TestGCBesidePrograms(t *testing.T) {
	for name, happens := range map[string]func(table conntracktest.Table, client, backend Tuple){
		"another flow has its port": func(table conntracktest.Table, client, backend Tuple) {
			other := table[backend]
			other.Xlate.DestinationPort++
			other.LastSeen = 200000
			table[backend] = other
			delete(table, client)
		},
		"another flow had its port, and is closed, too": func(table conntracktest.Table, client, backend Tuple) {
			other := table[backend]
			other.Xlate.DestinationPort++
			table[backend] = other
			delete(table, client)
		},
		"it continues": func(table conntracktest.Table, client, backend Tuple) {
			for _, key := range []Tuple{client, backend} {
				entry := table[key]
				entry.LastSeen = 200000
				table[key] = entry
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := conntracktest.Table{}
			table.Put(tcp, client, backend, [2]int{conntracktest.Closed, conntracktest.Closed}, [2]uint32{1000, 1000})
			want := conntracktest.Table{}
			asked := 0
			_, err := deleteFlows(table, nil, nil, func(key Tuple, entry *Entry) bool {
				if entry.LastSeen != 1000 {
					return false
				}
				if asked++; asked == 1 {
					one, other := key, entry.Xlate.Reverse()
					if entry.IsReply() {
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
