// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

var sequencesFlag = flag.Int("sequences", 150, "how many sequences TestJustEnough plays")

// connection is what a client knows of one. It must keep its backend, and the path to it, as long as the
// backend serves without a break and the client is not idle for too long.
type connection struct {
	service     *justService
	from        netip.AddrPort
	where       taken
	heard       uint32
	seq         uint32
	established bool
	// behind: somebody has forged a SYN with its tuple, whose entry may apply instead of the one that its
	// packets would get.
	behind bool
}

// just is a sequence of TestJustEnough.
type just struct {
	*rand.Rand
	t           *testing.T
	agent       *agent
	services    []*justService
	connections []*connection
	clients     uint32
	log         []string
	untracked   int
	forged      bool // some are behind a forged SYN
}

func (j *just) say(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%6d ", j.agent.seconds())+fmt.Sprintf(format, args...))
}

// TestJustEnough plays random sequences of changes to Services and agents while clients have connections, with
// the real programs, tables and package reconcile. No connection ever reaches another backend than its own
// while that one serves, the client is not idle longer than flows are remembered, and it was not idle for so
// long behind a forged SYN with its tuple; new connections get only ready backends; and in the end the tables
// are those of a new agent on a new node.
func TestJustEnough(t *testing.T) {
	seed := seedFlag.Of(t)
	w, fresh := newWorld(t, limits{timeouts: programTimeouts(idleTimes)}), newWorld(t, limits{timeouts: programTimeouts(idleTimes)})
	w.enter(t)
	for _, world := range []*world{w, fresh} {
		world.apply(t, world.tables())
	}
	untracked := 0
	for n := range uint64(*sequencesFlag) {
		j := &just{Rand: rand.New(rand.NewPCG(seed, n)), t: t}
		if err := j.play(w, fresh); err != nil {
			t.Fatalf("-seed=%d, sequence %d: %v\n%s", seed, n, err, strings.Join(j.log, "\n"))
		}
		untracked += j.untracked
	}
	if untracked == 0 {
		t.Error("no packet was forwarded without a conntrack entry: the sequences are too tame")
	}
	t.Logf("%d packets were forwarded without a conntrack entry", untracked)
}

func (j *just) play(w, fresh *world) error {
	w.forget(j.t)
	j.agent, j.services = newAgent(j.t, w), newJustServices()
	for _, s := range j.services {
		j.populate(s)
	}
	j.agent.apply(j.t, true, j.services...)
	for range 30 + j.IntN(120) {
		if err := j.step(); err != nil {
			return err
		}
	}
	j.untracked = int(w.counts(j.t)[5])
	return j.settles(fresh)
}

func (j *just) populate(s *justService) {
	for i := range s.states {
		s.states[i], s.weights[i] = []int{absent, ready, ready}[j.IntN(3)], uint8(1+j.IntN(2))
	}
}

func (j *just) step() error {
	switch k := j.IntN(100); {
	case k < 14:
		j.change(j.services[j.IntN(len(j.services))])
	case k < 24:
		j.agent.sweep(j.t)
		j.say("sweep")
	case k < 32:
		j.forget60()
		seconds := uint32(j.IntN(700))
		j.agent.pass(j.t, seconds)
		j.say("%d s pass", seconds)
	case k < 35:
		j.restart()
	case k < 37:
		j.agent.collect(j.t)
	case k < 60:
		return j.begins()
	case len(j.connections) > 0 && k < 66:
		j.forges(j.connections[j.IntN(len(j.connections))])
	case len(j.connections) > 0:
		return j.goesOn(j.connections[j.IntN(len(j.connections))])
	}
	return nil
}

// change changes a Service, and forgets connections of backends that no longer serve.
func (j *just) change(s *justService) {
	j.alter(s)
	j.agent.apply(j.t, false, s)
	j.say("%s: %s", s.owner().Name, s)
	j.drop(s)
}

func (s *justService) String() string {
	return fmt.Sprintf("states %v, weights %v, table %d, dsr %q, affinity %v", s.states, s.weights, s.size, s.dsr, s.affinity)
}

func (j *just) alter(s *justService) {
	i := j.IntN(len(s.states))
	switch k := j.IntN(20); {
	case k < 10:
		s.states[i] = j.IntN(3)
	case k < 12:
		s.weights[i] = uint8(1 + j.IntN(3))
	case k == 12:
		s.states = [6]int{}
		s.states[i] = ready
	case k < 15:
		s.size = []uint32{0, 31, 31, 37}[j.IntN(4)]
	case k < 18:
		s.dsr = []service.DSR{"", service.DSRIPIP, service.DSRGeneve, service.DSROpt}[j.IntN(4)]
	case k == 18:
		s.affinity = time.Duration(j.IntN(2)) * time.Hour
	default:
		for n, b := range j.Perm(len(s.states)) { // many at once
			if n < 3 {
				s.states[b] = j.IntN(2)
			}
		}
	}
}

// restart ends the agent and starts another, with or without a change in between.
func (j *just) restart() {
	for _, s := range j.services {
		if j.IntN(3) == 0 {
			j.alter(s)
		}
	}
	j.agent.start(j.t)
	j.agent.apply(j.t, true, j.services...)
	j.say("restart")
	for _, s := range j.services {
		j.say("%s: %s", s.owner().Name, s)
		j.drop(s)
	}
}

func (s *justService) serves(backend netip.AddrPort) bool {
	return slices.ContainsFunc(append(s.of(ready), s.of(terminating)...), func(b service.Backend) bool { return b.Addr == backend })
}

func (s *justService) ready(backend netip.AddrPort) bool {
	return slices.ContainsFunc(s.of(ready), func(b service.Backend) bool { return b.Addr == backend })
}

// drop forgets connections of backends that do not serve: R30 says what happens to them.
func (j *just) drop(s *justService) {
	j.connections = slices.DeleteFunc(j.connections, func(c *connection) bool {
		return c.service == s && !s.serves(c.where.backend)
	})
}

func (j *just) sends(c *connection, flags byte) taken {
	p := probe{from: c.from, to: c.service.address, protocol: uint8(c.service.protocol), payload: nil}
	if p.protocol == tcp {
		p.flags, p.seq = flags, c.seq
		if flags&syn == 0 {
			p.ack = backendISN + 1
		}
	} else {
		p.payload = []byte("question")
	}
	where := j.agent.takes(j.t, j.Rand, p)
	j.say("%v to %s, flags %d: %s to %v", c.from, c.service.owner().Name, flags, where.way, where.backend)
	return where
}

// begins has a client with a new tuple begin a connection, and continue it once.
func (j *just) begins() error {
	j.clients++
	s := j.services[j.IntN(len(j.services))]
	c := &connection{service: s, seq: clientISN, heard: j.agent.seconds(),
		from: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 200, byte(1 + j.clients%50)}), uint16(2000+j.clients))}
	c.where = j.sends(c, syn)
	if len(s.of(ready)) == 0 {
		if c.where.way != "refused" {
			return fmt.Errorf("no backend is ready, but the packet was not refused: %+v", c.where)
		}
		return nil
	}
	if !s.ready(c.where.backend) {
		return fmt.Errorf("a new connection reached %v, which is not ready", c.where)
	}
	if j.IntN(4) == 0 && s.protocol == service.TCP { // retransmit the SYN, before anything has changed
		if again := j.sends(c, syn); again.backend != c.where.backend {
			return fmt.Errorf("a SYN reached %v, and then %v", c.where, again)
		}
	}
	c.seq++
	if s.stateless {
		return nil
	}
	j.agent.answers(j.t, c.where, c.from, uint8(s.protocol))
	if err := j.goesOn(c); err != nil {
		return err
	}
	if s.protocol == udp { // it is remembered for long once it has continued for two seconds
		j.agent.pass(j.t, 2)
		if err := j.goesOn(c); err != nil {
			return err
		}
		j.agent.answers(j.t, c.where, c.from, udp)
	}
	j.connections = append(j.connections, c)
	return nil
}

// goesOn has a client send a packet, and sometimes its last one.
func (j *just) goesOn(c *connection) error {
	limit := idleTimes.Established(uint8(c.service.protocol))
	if idle := time.Duration(j.agent.seconds()-c.heard) * time.Second; idle >= limit-2*time.Second {
		j.forget(c)
		return nil
	}
	flags := byte(ack)
	last := j.IntN(15) == 0 && c.established
	if last {
		flags |= []byte{fin, rst}[j.IntN(2)]
	}
	got := j.sends(c, flags)
	if got.backend != c.where.backend || got.way != c.where.way {
		return fmt.Errorf("%v is with %v (%s), which serves; its packet reached %v (%s)", c.from, c.where.backend, c.where.way, got.backend, got.way)
	}
	if c.established = true; !c.behind {
		c.heard = j.agent.seconds()
	}
	if last {
		j.forget(c)
	}
	return nil
}

// forges sends a SYN with a connection's tuple, by somebody who cannot see the connection.
func (j *just) forges(c *connection) {
	if c.service.protocol != service.TCP {
		return
	}
	forged := *c
	forged.seq = c.seq + 1<<31
	j.say("forged:")
	j.sends(&forged, syn)
	c.behind, j.forged = true, true
}

// forget60 passes the time for which a forged SYN is remembered, with a GC pass as every ten seconds. Clients
// behind one have to send now: nobody knows that they sent before.
func (j *just) forget60() {
	if !j.forged {
		return
	}
	j.agent.pass(j.t, 61)
	j.agent.sweep(j.t)
	j.say("61 s pass, and a GC pass")
	j.forged = false
	for _, c := range j.connections {
		c.behind = false
	}
}

func (j *just) forget(c *connection) {
	j.connections = slices.DeleteFunc(j.connections, func(o *connection) bool { return o == c })
}

// settles waits until nothing of the past is left, and the tables are those that a new agent would write on a
// new node.
func (j *just) settles(fresh *world) error {
	for range 3 {
		j.agent.pass(j.t, 1001)
		j.agent.sweep(j.t)
	}
	if n := j.agent.Stats().Remembering; n > 0 {
		return fmt.Errorf("%d frontends still remember an earlier table", n)
	}
	other := newAgent(j.t, fresh)
	other.apply(j.t, true, j.services...)
	other.pass(j.t, 2)
	other.sweep(j.t)
	got, want := dump(j.t, j.agent.tables), dump(j.t, other.tables)
	if !maps.Equal(got, want) {
		return fmt.Errorf("the tables are\n%v\nand those of a new agent\n%v", got, want)
	}
	have, err := j.agent.Usage()
	must(j.t, err)
	wants, err := other.Usage()
	must(j.t, err)
	for i := range have {
		if have[i] != wants[i] && have[i].Table != bpf.SockMapAffinity {
			return fmt.Errorf("table %s: %d entries used, and with a new agent %d", have[i].Table, have[i].Used, wants[i].Used)
		}
	}
	none := service.Delta{Plans: map[service.Ref]*service.Plan{}}
	for _, s := range j.services {
		none.Plans[s.owner()] = nil
	}
	for _, a := range []*agent{j.agent, other} {
		must(j.t, a.Apply(none))
		a.collect(j.t)
		a.forget(j.t)
	}
	return nil
}
