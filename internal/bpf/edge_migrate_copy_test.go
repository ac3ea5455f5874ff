// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// TestFollowConntrack: after the last pass the new tables have exactly what the old ones have, whatever
// happened to a flow between the passes. (R37)
func TestFollowConntrack(t *testing.T) {
	const flows = 3000
	oldAssured, _ := newConntrack(t, EdgeTCMapConntrack, 800, 0, nil)
	oldUnreplied, _ := newConntrack(t, EdgeTCMapUnreplied, 900, 0, oldAssured.Secret)
	assured, _ := newConntrack(t, EdgeTCMapConntrack, 1300, 0, oldAssured.Secret)
	unreplied, _ := newConntrack(t, EdgeTCMapUnreplied, 700, 0, oldAssured.Secret)
	tables := func(a, u *ConntrackSets) map[string]*ebpf.Map {
		return map[string]*ebpf.Map{
			EdgeTCMapConntrack: a.Rows, EdgeTCMapConntrackTags: a.Tags,
			EdgeTCMapUnreplied: u.Rows, EdgeTCMapUnrepliedTags: u.Tags, EdgeTCMapTableSecret: oldAssured.Secret,
		}
	}
	follow := following(tables(oldAssured, oldUnreplied), tables(assured, unreplied))
	oldA, err := oldAssured.Open()
	must(t, err)
	oldU, err := oldUnreplied.Open()
	must(t, err)
	newU, err := unreplied.Open()
	must(t, err)
	seen := Now() + 1 // one for all: to assured entries the last pass brings their state alone
	entry := func(n int, state ConntrackState) *ConntrackSlot {
		e := &ConntrackSlot{Key: Tuple{Protocol: 17, SourcePort: uint16(n), DestinationPort: uint16(n >> 16)}}
		e.Ct = ConntrackEntry{Tag: TupleHash(&e.Key), State: uint8(state), LastSeen: seen, Packets: uint64(n), Dsr: uint8(DSRIPIP)} // one-sided
		return e
	}
	const isAssured, isUnreplied, isGone = 1, 2, 3
	want := map[Tuple]ConntrackEntry{}
	where := make([]int, 2*flows)
	step := func(n int) {
		e := entry(n, ConntrackNew)
		switch old := where[n]; {
		case old == 0 || old == isUnreplied && rand.IntN(3) == 0:
			where[n], e.Ct.Packets = isUnreplied, rand.Uint64()
			oldU.Set(e, settable.Eviction{Owner: 8})
			want[e.Key] = e.Ct
		case old == isUnreplied && rand.IntN(2) == 0:
			where[n], e.Ct.State = isAssured, uint8(ConntrackEstablished)
			oldA.Set(e, settable.Eviction{Owner: 8})
			oldU.Delete(&e.Key)
			want[e.Key] = e.Ct
		case old == isUnreplied:
			where[n] = isGone
			oldU.Delete(&e.Key)
			delete(want, e.Key)
		case old == isAssured && rand.IntN(2) == 0:
			e.Ct.State, e.Ct.Flags = uint8(ConntrackClosed), uint8(ConntrackFIN)
			oldA.Set(e, settable.Eviction{Owner: 8})
			want[e.Key] = e.Ct
		}
	}
	for n := range flows {
		step(n)
		step(n)
	}
	half := entry(11*flows, ConntrackNew) // whose other entry is lost: its replies would be dropped
	half.Ct.Dsr, half.Ct.LastSeen = uint8(DSRNone), 0
	oldU.Set(half, settable.Eviction{Owner: 8})
	must(t, follow(FirstPass))
	if _, _, found := newU.At(&half.Key); found {
		t.Error("of a flow with NAT the old tables have the client's entry alone, unused since before the migration: the first pass copies it, want it left: its replies would be dropped")
	}
	oldU.Delete(&half.Key)
	for range flows {
		step(rand.IntN(2 * flows))
	}
	must(t, follow(RecentPass))
	for range flows {
		step(rand.IntN(2 * flows))
	}
	// What has begun in the new tables since then stays.
	began := entry(10*flows, ConntrackNew)
	newU.Insert(began, settable.Eviction{})
	want[began.Key] = began.Ct
	must(t, follow(LastPass))
	for _, table := range []*ConntrackSets{assured, unreplied} {
		must(t, table.Walk(func(e *ConntrackSlot) bool {
			if w, ok := want[e.Key]; !ok {
				t.Errorf("after the last pass the new tables have the entry of flow %d, %s, which the old tables no longer have", e.Key.SourcePort, shown(e.Ct))
			} else if e.Ct != w {
				t.Errorf("after the last pass the new tables have the entry of flow %d as %s, the old ones as %s", e.Key.SourcePort, shown(e.Ct), shown(w))
			}
			delete(want, e.Key)
			return !t.Failed()
		}))
	}
	if t.Failed() {
		return // the walk has ended early
	}
	for key, w := range want {
		t.Errorf("after the last pass the new tables lack %d entries of about %d; the old ones have flow %d as %s", len(want), flows, key.SourcePort, shown(w))
		break
	}
}

// following returns a function that runs a pass of a migration.
func following(from, to map[string]*ebpf.Map) func(CopyPass) error {
	since := Now() - 1
	return func(pass CopyPass) error {
		return followConntrack(Following{Pass: pass, Old: from, New: to, Since: since, Tick: settable.Tick()})
	}
}

// shown is a conntrack entry in the words of a failed test.
func shown(e ConntrackEntry) string {
	states := map[ConntrackState]string{ConntrackNew: "new", ConntrackReplied: "answered", ConntrackEstablished: "established", ConntrackClosed: "closed"}
	return fmt.Sprintf("%s, flags %#x, %d packets, last seen at %d", cmp.Or(states[ConntrackState(e.State)], fmt.Sprint("state ", e.State)), e.Flags, e.Packets, e.LastSeen)
}

// TestFollowIntoFullTables: a connection that begins during the migration is copied, although its sets are full:
// those of assured flows with closed connections, those of others with datagrams of another Service. A connection
// that lives is not evicted. (R37)
func TestFollowIntoFullTables(t *testing.T) {
	open := func(name string, sets uint32, secret *ebpf.Map) (*ConntrackSets, *settable.OpenTable[Tuple, ConntrackSlot]) {
		table, _ := newConntrack(t, name, sets, 0, secret)
		opened, err := table.Open()
		must(t, err)
		return table, opened
	}
	oldAssured, oldA := open(EdgeTCMapConntrack, 20, nil)
	oldUnreplied, oldU := open(EdgeTCMapUnreplied, 20, oldAssured.Secret)
	assured, newA := open(EdgeTCMapConntrack, 2, oldAssured.Secret)
	unreplied, newU := open(EdgeTCMapUnreplied, 1, oldAssured.Secret)
	tablesOf := func(a, u *ConntrackSets) map[string]*ebpf.Map {
		return map[string]*ebpf.Map{
			EdgeTCMapConntrack: a.Rows, EdgeTCMapConntrackTags: a.Tags,
			EdgeTCMapUnreplied: u.Rows, EdgeTCMapUnrepliedTags: u.Tags, EdgeTCMapTableSecret: oldAssured.Secret,
		}
	}
	follow := following(tablesOf(oldAssured, oldUnreplied), tablesOf(assured, unreplied))
	port := uint16(0)
	begin := func(table *settable.OpenTable[Tuple, ConntrackSlot], service uint32, rank SockSetRank, state ConntrackState) (key Tuple) {
		port++
		e := &ConntrackSlot{Key: Tuple{Protocol: 6, SourcePort: port}}
		e.Ct = ConntrackEntry{Tag: TupleHash(&e.Key), State: uint8(state), LastSeen: Now() + 1, Dsr: uint8(DSRIPIP)} // one-sided
		table.Set(e, settable.Eviction{Expires: settable.Tick() + 1<<20, Owner: service<<SockSetRankSET_RANK_BITS | uint32(rank)})
		return e.Key
	}
	lives := begin(oldA, 1, SockSetRankSET_RANK_TCP, ConntrackEstablished)
	for range 60 {
		begin(oldA, 1, SockSetRankSET_RANK_CLOSED, ConntrackClosed)
		begin(oldU, 1, SockSetRankSET_RANK_UNASSURED, ConntrackNew)
	}
	keys := map[Tuple]string{lives: "before"}
	for _, pass := range []CopyPass{FirstPass, RecentPass, LastPass} {
		must(t, follow(pass))
		if pass != LastPass {
			keys[begin(oldA, 2, SockSetRankSET_RANK_TCP, ConntrackEstablished)] = "assured, after pass " + string('0'+rune(pass))
			keys[begin(oldU, 2, SockSetRankSET_RANK_UNASSURED, ConntrackNew)] = "not assured, after pass " + string('0'+rune(pass))
		}
	}
	for key, when := range keys {
		_, _, inA := newA.At(&key)
		_, _, inU := newU.At(&key)
		if !inA && !inU {
			t.Errorf("a connection begun %s is in no new table; its sets are full of closed connections and of datagrams, which are to give way", when)
		}
	}
}

// newConntrackCopy returns a last pass into new tables.
func newConntrackCopy(t *testing.T) *conntrackCopy {
	t.Helper()
	tables, _ := newConntrack(t, EdgeTCMapConntrack, 20, 0, nil)
	half, _ := newConntrack(t, EdgeTCMapUnreplied, 20, 0, tables.Secret)
	c := &conntrackCopy{Following: Following{Pass: LastPass, Tick: settable.Tick()}}
	var err error
	c.assured, err = tables.Open()
	must(t, err)
	c.unreplied, err = half.Open()
	must(t, err)
	return c
}

// TestFlowThatHasBegunAgain: a client has used its port again in the new tables, and the old ones still have the
// connection before that: the new one stays. (R37)
func TestFlowThatHasBegunAgain(t *testing.T) {
	for name, copied := range map[string]uint8{"a flow of the new programs": 0, "a copy": conntrackCopied} {
		c := newConntrackCopy(t)
		e := &ConntrackSlot{Key: Tuple{Protocol: 6, SourcePort: 1}, Ct: ConntrackEntry{State: uint8(ConntrackNew), Flags: copied}}
		e.Ct.Tag = TupleHash(&e.Key)
		if !c.unreplied.Insert(e, settable.Eviction{Expires: c.Tick + 1000}) {
			t.Fatal("no room")
		}
		old := *e
		old.Ct.State, old.Ct.Flags = uint8(ConntrackEstablished), 0
		c.assuredFlow(&old, settable.Eviction{Expires: c.Tick + 1000})
		_, _, stays := c.unreplied.At(&e.Key)
		_, _, replaced := c.assured.At(&e.Key)
		if own := copied == 0; stays != own || replaced == own {
			t.Errorf("the new tables have %s from port 1, the old ones an established flow from the same port: after the last pass the former is there: %t, the latter: %t; want %t, %t",
				name, stays, replaced, own, !own)
		}
	}
}

// TestEvictedFlowsAreDeletedWhole: a flow that gives way to a copy loses both entries; an entry of another flow at its
// SNAT port stays. (R37)
func TestEvictedFlowsAreDeletedWhole(t *testing.T) {
	c := newConntrackCopy(t)
	entry := func(client, snat uint16, reply bool) *ConntrackSlot {
		asked, seen := Tuple{Protocol: 6, SourcePort: client, DestinationPort: 80}, Tuple{Protocol: 6, SourcePort: 8080, DestinationPort: snat}
		e := &ConntrackSlot{Key: asked, Ct: ConntrackEntry{Xlate: seen.Reverse()}}
		if reply {
			e = &ConntrackSlot{Key: seen, Ct: ConntrackEntry{Xlate: asked.Reverse()}}
		}
		e.Ct.Tag = TupleHash(&e.Key)
		return e
	}
	own, others := entry(1, 2000, true), entry(9, 3000, true)
	for _, e := range []*ConntrackSlot{own, others} {
		if !c.assured.Insert(e, settable.Eviction{Expires: c.Tick + 1000}) {
			t.Fatal("no room")
		}
	}
	c.deleteOther(entry(1, 2000, false))
	c.deleteOther(entry(2, 3000, false)) // had the port before
	if _, _, found := c.assured.At(&own.Key); found {
		t.Error("a flow from port 1 with SNAT port 2000 was evicted: its entry of replies stays, want it deleted")
	}
	if _, _, found := c.assured.At(&others.Key); !found {
		t.Error("a flow from port 2 was evicted, whose SNAT port 3000 a flow from port 9 has by now: the entry of replies of the latter is deleted, want it to stay")
	}
}
