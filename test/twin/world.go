// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// program is the beeline binary that all tests run.
var program string

// A world is the two labs.
type world struct {
	t      testing.TB
	layout *layout
	sides  [2]*side
	cpu    int
	*numbers
	buffer  []byte
	changes []string // in force
	tally   *tally
}

// numbers are of the last frame, and of the last flow.
type numbers struct {
	number   uint32
	lastPort uint16
}

// tally counts what was compared.
type tally struct{ frames, arrived, late int }

// lastCPU spreads worlds over the CPUs.
var lastCPU atomic.Int32

// newWorld makes the two labs of a layout, with a running agent in the first.
func newWorld(t testing.TB, l *layout) *world {
	t.Helper()
	if why := l.lacks(); why != "" {
		t.Skip(why)
	}
	w := &world{t: t, layout: l, tally: &tally{}, numbers: &numbers{}, buffer: make([]byte, longest), cpu: int(lastCPU.Add(1)) % runtime.NumCPU()}
	for i, name := range sides {
		s := &side{Lab: lab.NewOf(t, l.shape), name: name, layout: l, snat: newSNAT()}
		s.addresses = addressesOf(s, nodeA)
		w.sides[i] = s
		t.Cleanup(s.close)
		if i == 0 {
			w.setAgent(s)
		}
		w.must(s.prepare())
		w.must(s.open())
		w.must(s.meetAll())
	}
	w.settle()
	w.must(w.sides[0].agent.Start())
	w.awaitShortcut()
	w.settle()
	return w
}

// in is the world for a subtest.
func (w *world) in(t *testing.T) *world {
	sub := *w
	sub.t = t
	return &sub
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// setAgent gives a side its agent.
func (w *world) setAgent(s *side) {
	w.t.Helper()
	folder := &node.Folder{Path: w.t.TempDir()}
	objects := node.Cluster(s.Lab)
	if w.layout.objects != nil {
		objects = append(objects, w.layout.objects(s.Lab)...)
	}
	w.must(folder.Put("cluster", objects...))
	s.agent = &node.Agent{Host: s.Host(nodeA), Program: program, Manifests: folder.Path, MaxFlows: 16384, Flags: w.layout.flags, Log: &node.Log{}}
	w.t.Cleanup(func() {
		if err := s.agent.Kill(); err != nil {
			w.t.Errorf("the agent ended before it was killed: %v", err)
		}
		if w.t.Failed() {
			w.t.Logf("the agent printed:\n%s", s.agent.Log)
		}
	})
}

// meetAll has each node know its pods and next hops.
func (s *side) meetAll() error {
	for _, n := range s.Nodes() {
		for _, h := range s.Hosts() {
			if h.Role != lab.RoleFabric && h != n && (h.Role != lab.RolePod || h.Node == n) {
				if err := s.meet(n.Name, h.Addr4, h.Addr6); err != nil {
					return err
				}
			}
		}
	}
	client := s.Host("client")
	if err := s.meet(client.Name, s.Host(nodeA).Addr4, s.Host(nodeA).Addr6); err != nil {
		return err
	}
	for _, pod := range s.Pods() {
		if err := s.meet(pod.Name, pod.Node.Addr4, pod.Node.Addr6); err != nil {
			return err
		}
	}
	return nil
}

// awaitShortcut waits until flow offload has chosen a provider, or the shortcut of pods has all those of the node.
func (w *world) awaitShortcut() {
	w.t.Helper()
	if w.layout.learns > 0 {
		w.must(w.sides[0].agent.WaitFor("ready to learn flows", func(s *api.Status) bool { return s.Offload != nil && s.Offload.Provider != "" }))
	}
	if w.layout.objects != nil || w.layout.learns > 0 {
		return
	}
	pods := w.sides[0].Host(nodeA).Pods()
	w.must(w.sides[0].agent.WaitFor("aware of its pods", func(s *api.Status) bool {
		if s.Pods == nil {
			return false
		}
		have := map[netip.Addr]bool{}
		for _, d := range s.Pods.Devices {
			for _, a := range d.PodAddresses {
				have[a] = d.Shortcut
			}
		}
		return !slices.ContainsFunc(pods, func(p *lab.Host) bool { return !have[p.Addr4] || !have[p.Addr6] })
	}))
}

// settle waits for packets of the labs' own, and forgets them.
func (w *world) settle() {
	w.t.Helper()
	time.Sleep(100 * time.Millisecond)
	for i := range w.sides {
		w.collect(i, Frame{})
	}
}

// collect returns what has arrived in a lab since the last call, after a frame.
func (w *world) collect(i int, sent Frame) (all []seen) {
	w.t.Helper()
	s := w.sides[i]
	for _, tap := range s.taps {
		arrivals, err := tap.drain(w.buffer)
		w.must(err)
		for _, a := range arrivals {
			w.must(s.learn(sent, a))
			if p, ok := s.normalise(a); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// Waiting for packets: a frame has passed all veth devices when the call that sends it returns, unless ksoftirqd or a
// process of a tunnel carries on.
const (
	shortly  = time.Millisecond
	tunneled = 20 * time.Millisecond // with such a process
	hasty    = 10 * time.Millisecond // what differs is sent again
	late     = 150 * time.Millisecond
)

// exchange sends a frame into both labs and returns what arrives in each: at once if the same has arrived, else after
// some time.
func (w *world) exchange(f Frame, within time.Duration) (got [2][]seen) {
	w.t.Helper()
	w.number++
	for _, s := range w.sides {
		w.must(s.send(f, w.number))
	}
	wait := shortly
	if w.layout.slow {
		wait, within = tunneled, 5*within
	}
	for begun := time.Now(); ; time.Sleep(shortly) {
		before := len(got[0]) + len(got[1])
		for i := range w.sides {
			got[i] = append(got[i], w.collect(i, f)...)
		}
		equal, n := agree(w.layout, got), len(got[0])+len(got[1])
		if past := time.Since(begun); equal && n == before && (n > 0 || past >= wait) || past >= max(within, wait) {
			return got
		}
	}
}

// remembered is how long a shortcut remembers a decision (docs/develop/pod.md), and some more.
const remembered = 60 * time.Millisecond

// compare sends frames, each when nothing of its flow is remembered, and again at once. The caller lets remembered
// pass since the last frame of each flow.
func (w *world) compare(frames []Frame, within time.Duration) (all []Difference) {
	w.t.Helper()
	finished := pinned(w.cpu, func() {
		for _, f := range frames {
			for _, cached := range []bool{false, true} {
				got := w.exchange(f, within)
				w.tally.frames++
				w.tally.arrived += len(got[1])
				if !agree(w.layout, got) {
					all = append(all, Difference{Frame: f, Cached: cached, Layout: w.layout.name, Changes: slices.Clone(w.changes), Got: got})
				}
			}
		}
	})
	if !finished {
		w.t.FailNow()
	}
	return all
}

// most is how many frames are compared with patience when too much differs.
const most = 10

// differences compares frames until no difference is left, or the time is over in which a shortcut follows a change. It
// returns differences that are left. Without a change a frame that differs is sent once more, and a lab then has more
// time to forward it: report says how many did not differ then.
func (w *world) differences(frames []Frame, follows time.Duration) []Difference {
	w.t.Helper()
	for end := time.Now().Add(follows); ; {
		last := time.Now().After(end)
		frames = framesOf(w.compare(frames, hasty))
		w.pause()
		if len(frames) == 0 {
			return nil
		}
		if last {
			some := spread(frames, most)
			all := w.compare(some, late)
			w.pause()
			if follows == 0 {
				w.tally.late += len(some) - len(framesOf(all))
			}
			return all
		}
	}
}

// framesOf are the frames of differences, each once.
func framesOf(all []Difference) (frames []Frame) {
	for i, d := range all {
		if i == 0 || !d.Cached || fmt.Sprint(frames[len(frames)-1]) != fmt.Sprint(d.Frame) {
			frames = append(frames, d.Frame)
		}
	}
	return frames
}

// spread are at most n frames, from all parts of the list.
func spread(all []Frame, n int) (some []Frame) {
	if len(all) <= n {
		return all
	}
	for i := range n {
		some = append(some, all[i*len(all)/n])
	}
	return some
}

// pause lets the shortcut forget its decisions.
func (w *world) pause() { time.Sleep(remembered) }

// renew waits until both nodes know their pods and the shortcut has them.
func (w *world) renew() {
	w.t.Helper()
	for _, s := range w.sides {
		w.must(s.meetAll())
	}
	w.awaitShortcut()
	w.settle()
}

// report prints what was compared.
func (w *world) report() {
	w.t.Helper()
	w.t.Logf("layout %s: %d frames sent into both labs, %d packets compared", w.layout.name, w.tally.frames, w.tally.arrived)
	if w.tally.late > 0 {
		w.t.Logf("excused: layout %s: %d of %d frames differed, and did not when sent again with more time", w.layout.name, w.tally.late, w.tally.frames)
	}
	if w.tally.late > max(most, w.tally.frames/100) {
		w.t.Errorf("layout %s: %d of %d frames differed, and did not when sent again", w.layout.name, w.tally.late, w.tally.frames)
	}
}
