// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	"beeline.io/beeline/test/node"
)

// R37, R30, R12: a node lives through each event, and through hostile packets beside it, and no client loses a
// request, except where docs/operate/life.md says so. Afterwards the tables are those of a fresh agent.
func TestLife(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	only, err := regexp.Compile(*onlyFlag)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, rand.New(rand.NewPCG(seed, 0)))
	w.logf("-seed=%d", seed)
	t.Cleanup(w.stopClients)
	w.startClients()
	w.churn()
	time.Sleep(time.Second)
	if soaking() {
		w.draw(*lastingFlag, only)
	} else {
		w.inOrder(only)
	}
	w.stopClients()
	w.sum()
	w.wantLikeFresh()
}

// inOrder runs each event of the short form once, or all that -only names.
func (w *world) inOrder(only *regexp.Regexp) {
	for _, e := range events {
		if only.MatchString(e.name) && (!e.drawn || *onlyFlag != "") {
			w.happen(e, kindNamed(e.beside))
			w.happened[e.name]++
		}
	}
}

// draw draws events, half of them with hostile packets beside, for some time.
func (w *world) draw(lasting time.Duration, only *regexp.Regexp) {
	for begin := time.Now(); time.Since(begin) < lasting; {
		e := events[w.random.IntN(len(events))]
		if !only.MatchString(e.name) {
			continue
		}
		var beside *hostile
		if w.random.IntN(2) == 0 {
			beside = &hostileKinds[w.random.IntN(len(hostileKinds))]
		}
		w.happen(e, beside)
		w.happened[e.name]++
	}
}

func kindNamed(name string) *hostile {
	for i := range hostileKinds {
		if hostileKinds[i].name == name {
			return &hostileKinds[i]
		}
	}
	return nil
}

// sum prints what was tried and lost.
func (w *world) sum() {
	for _, e := range events {
		w.logf("%-32s %4d times", e.name, w.happened[e.name])
	}
	w.logf("%-32s %4d times", "kills, while it starts or later", w.killed.Load())
	for _, k := range hostileKinds {
		w.logf("%-32s %9d packets", k.name, k.sent.Load())
	}
	for _, l := range w.tallies {
		w.logf("%s", l)
		if l.tried == l.lost+l.spent+l.overflowed {
			w.t.Errorf("%s, %s: no request of %d was answered", l.place, l.kind, l.tried)
		}
	}
	w.sumFill()
	for _, place := range slices.Sorted(maps.Keys(w.queues.places)) {
		w.logf("full queue: %-20s in %d of the looks", place, w.queues.places[place])
	}
	all := w.counts()
	w.logf("%d requests, %d lost as declared, %d in full queues, %d lost", all.tried, all.spent, all.overflowed, all.lost)
	if all.lost > 0 {
		w.t.Errorf("%d of %d requests were lost", all.lost, all.tried)
	}
	// The ring of a veth has 256 places, and the machine's other work may keep its CPU for longer than these last.
	// Nobody sends a datagram again.
	if all.overflowed > 0 {
		w.t.Logf("excused: %d of %d requests were lost while queues overflowed", all.overflowed, all.tried)
	}
	if all.overflowed > all.tried/1000 {
		w.t.Errorf("%d of %d requests were lost while queues overflowed: this machine is too busy for the test, or a program processes packets too slowly", all.overflowed, all.tried)
	}
}

// wantLikeFresh compares the tables with those of an agent that has read the same objects once, and is attached
// where it sees no process and no packet.
func (w *world) wantLikeFresh() {
	w.t.Helper()
	w.must(w.objects.put("changing", w.service(changing, "b3")...))
	fresh := w.newAgent()
	fresh.Name, fresh.EdgeMode, fresh.Flags = "fresh", "off", append(fresh.Flags, "--cgroup-root", w.Host("fabric").Cgroup)
	w.must(fresh.Start())
	defer func() { w.must(fresh.Kill()) }()
	w.eventually("the tables are those of a fresh agent", func() error {
		want, err := fresh.Tables()
		if err != nil {
			return err
		}
		got, err := w.agent.Tables()
		if err != nil {
			return err
		}
		return difference(node.Contents(got), node.Contents(want))
	})
}

func difference(got, want map[string]string) error {
	for name, text := range want {
		if got[name] != text {
			return fmt.Errorf("%s is %q, of a fresh agent %q", name, got[name], text)
		}
	}
	for name, text := range got {
		if want[name] == "" {
			return fmt.Errorf("%s is left over: %s", name, text)
		}
	}
	return nil
}
