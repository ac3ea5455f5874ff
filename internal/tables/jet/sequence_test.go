// SPDX-License-Identifier: Apache-2.0

package jet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"beeline.io/beeline/test/seed"
)

var (
	seedFlag      = seed.New("seed", "seed of the sequences of TestSequences")
	sequencesFlag = flag.Int("sequences", 100_000, "how many sequences TestSequences plays")
)

const (
	timeout  = 100 // of an idle flow
	halfOpen = 10  // of an unreplied flow
)

// A ctEntry is the conntrack entry of a flow.
type ctEntry struct {
	backend uint32
	seen    Seconds
	begun   bool // only a SYN was seen
	forged  bool // by a host that does not see the connection
	snat    bool // its packets do not take the path of those without an entry
}

// A connection is what its client knows.
type connection struct {
	hash    uint32
	backend uint32 // the one that answered its SYN
	heard   Seconds
	over    bool
}

// play simulates a balancer, its frontend and clients.
type play struct {
	*rand.Rand
	state       State
	now         Seconds
	records     map[int]ctEntry // by connection
	connections []*connection
	log         []string
}

func (p *play) say(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf("%4d ", p.now)+fmt.Sprintf(format, args...))
}

// table returns a table of random backends; half of the slots stay as they were.
func (p *play) table(size int) []uint32 {
	table := make([]uint32, size)
	for slot := range table {
		table[slot] = 1 + p.Uint32N(4)
		if len(p.state.Table) == size && p.IntN(2) == 0 {
			table[slot] = p.state.Table[slot]
		}
	}
	return table
}

func (p *play) change() {
	table, untracked := p.state.Table, p.state.Untracked
	switch p.IntN(8) {
	case 0:
		untracked = !untracked
	case 1:
		table = p.table(2 + p.IntN(3))
	case 2:
		table = nil
	default:
		table = p.table(max(2, len(table)))
	}
	p.state = State{table, untracked, p.state.Next(table, untracked, p.now)}
	p.say("table %v, untracked %v, history %v", table, untracked, p.state.History)
}

func (p *play) expire() {
	for n, r := range p.records {
		limit := Seconds(timeout)
		if r.begun {
			limit = halfOpen
		}
		if p.now-r.seen >= limit {
			delete(p.records, n)
		}
	}
}

func (p *play) gc() {
	p.expire()
	busy := func(slot uint32) bool {
		for n, r := range p.records {
			if Slot(p.connections[n].hash, len(p.state.Table)) == slot && (r.backend != p.state.Table[slot] || r.snat) {
				return true
			}
		}
		return false
	}
	p.state.History = p.state.Settle(timeout, p.now, busy)
	p.say("GC pass: history %v", p.state.History)
}

// sends sends a packet to the backend that the programs choose; 0: it is rejected. Past a forged SYN it is
// forwarded without a conntrack entry (forged_syn in bpf/dsr/stateless.h).
func (p *play) sends(n int, syn bool) (backend uint32, recorded bool) {
	c, s := p.connections[n], p.state
	contested := s.Contested(c.hash)
	if r, ok := p.records[n]; ok && contested {
		if stable := s.Stable(c.hash); r.begun && r.forged && !syn && stable != 0 && stable != r.backend {
			return stable, false
		}
		r.seen, r.begun = p.now, r.begun && syn
		p.records[n] = r
		return r.backend, true
	}
	if !syn {
		backend = s.Stable(c.hash)
	}
	stable := backend != 0
	if !stable {
		if s.Table == nil {
			return 0, false
		}
		backend = s.Table[Slot(c.hash, len(s.Table))]
	}
	if contested {
		p.records[n] = ctEntry{backend: backend, seen: p.now, begun: syn, snat: !s.Untracked && !stable}
	}
	return backend, true
}

// forges sends a SYN with a connection's tuple from a host that does not see the connection. If the flow has no
// entry, the SYN creates a forged one; otherwise the entry's backend handles it.
func (p *play) forges(n int) {
	_, known := p.records[n]
	backend, _ := p.sends(n, true)
	if r, ok := p.records[n]; ok && !known {
		r.forged = true
		p.records[n] = r
	}
	p.say("a forged SYN of connection %d: %d", n, backend)
}

func (p *play) step() error {
	switch k := p.IntN(22); {
	case k < 3:
		p.change()
	case k < 6:
		p.gc()
	case k < 9:
		p.now += Seconds(p.IntN(2 * timeout / 3))
		p.expire()
		p.say("time passes")
	case k < 13:
		return p.begins()
	case len(p.connections) > 0 && k < 15:
		p.forges(p.IntN(len(p.connections)))
	case len(p.connections) > 0:
		return p.goesOn(p.IntN(len(p.connections)))
	}
	return nil
}

// begins opens a connection: the client sends a SYN twice, and acknowledges the answer.
func (p *play) begins() error {
	n, c := len(p.connections), &connection{hash: p.Uint32(), heard: p.now}
	p.connections = append(p.connections, c)
	want := uint32(0)
	if p.state.Table != nil {
		want = p.state.Table[Slot(c.hash, len(p.state.Table))]
	}
	c.backend, _ = p.sends(n, true)
	p.say("connection %d of %#x begins with %d", n, c.hash, c.backend)
	if c.backend != want {
		return fmt.Errorf("connection %d starts at %d, and the table says %d", n, c.backend, want)
	}
	if c.backend == 0 {
		c.over = true
		return nil
	}
	if again, _ := p.sends(n, true); again != c.backend {
		return fmt.Errorf("the SYN of connection %d reaches %d, then %d", n, c.backend, again)
	}
	return p.goesOn(n)
}

// goesOn sends another packet of a client, unless the connection is over: idle for too long, or rejected. Only
// packets with an entry, or that need none, keep the connection alive: one past a forged SYN does not.
func (p *play) goesOn(n int) error {
	c := p.connections[n]
	if c.over = c.over || p.now-c.heard >= timeout; c.over {
		return nil
	}
	got, recorded := p.sends(n, false)
	p.say("connection %d of %#x, with %d: %d", n, c.hash, c.backend, got)
	if got == 0 && p.state.Table == nil {
		c.over = true
		return nil
	}
	if got != c.backend {
		return fmt.Errorf("connection %d has backend %d, and a packet reaches %d", n, c.backend, got)
	}
	if recorded { // or no entry is needed: otherwise nothing records that it sent a packet
		c.heard = p.now
	}
	return nil
}

// TestSequences: no established connection reaches another backend, however the table changes, unless it was
// idle, or behind forged SYNs, for longer than the flow timeout. New connections get a backend of the table. At
// the end, when nothing changes, there is no history.
func TestSequences(t *testing.T) {
	seed := seedFlag.Of(t)
	for n := range uint64(*sequencesFlag) {
		if log, err := sequence(seed, n); err != nil {
			t.Fatalf("-seed=%d, sequence %d: %v\n%s", seed, n, err, strings.Join(log, "\n"))
		}
	}
}

// sequence plays one sequence, and returns its log.
func sequence(seed, number uint64) (log []string, err error) {
	p := &play{Rand: rand.New(rand.NewPCG(seed, number)), now: 1000, records: map[int]ctEntry{}}
	for range 5 + p.IntN(60) {
		if err := p.step(); err != nil {
			return p.log, err
		}
	}
	for range 3 {
		p.now += timeout
		p.gc()
	}
	if p.state.History != nil {
		return p.log, fmt.Errorf("there is still a history at the end: %v", p.state.History)
	}
	return p.log, nil
}

// Contested reports whether a flow needs a conntrack entry, as the programs do.
func (s State) Contested(hash uint32) bool {
	switch {
	case !s.Untracked:
		return true
	case s.History == nil:
		return false
	case len(s.History.Stable) != len(s.Table):
		return true
	}
	return s.History.Contested[Slot(hash, len(s.Table))]
}

// Stable returns the backend of a packet without an entry that does not start a flow, if its slot is contested;
// 0: the table decides.
func (s State) Stable(hash uint32) uint32 {
	if s.History == nil {
		return 0
	}
	return s.History.Stable[Slot(hash, len(s.History.Stable))]
}
