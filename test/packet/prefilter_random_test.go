// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// prefilters are two nodes that differ only in the prefilter: the second one's lets everything in.
type prefilters struct {
	shut, open *world
	g          *generator
}

// Every packet has the same fate with an enabled prefilter as with an open one, and leaves the same entries:
// while tables change, entries get lost, and the prefilter is rebuilt.
func TestPrefilterChangesNothing(t *testing.T) {
	const packets, ofTables = 10_000, 100
	seed := seedFlag.Of(t)
	d := &prefilters{shut: newWorld(t, limits{}), open: newWorld(t, limits{})}
	d.g = &generator{Rand: rand.New(rand.NewPCG(seed, 1)), w: d.shut}
	var kept uint64
	for n := range packets {
		if n%ofTables == 0 {
			if n%(5*ofTables) == 0 {
				d.forget(t)
			}
			d.g.fill()
			d.both(t, func(w *world) { w.apply(t, d.g.tables) })
			d.open.prefilter.Disable()
		}
		before, _ := now(t)
		err := d.step(t)
		if after, _ := now(t); after != before { // one may have run in the next second, the other not
			d.forget(t)
		} else if err != nil {
			t.Fatalf("-seed=%d, packet %d: %v", seed, n, err)
		}
		if d.shut.prefilter.Enabled() && !d.open.prefilter.Enabled() {
			kept++
		}
	}
	if kept != packets {
		t.Errorf("%[2]d of %[1]d packets passed at the enabled prefilter and not at the open one", packets, kept)
	}
}

// forget removes the state of both.
func (d *prefilters) forget(t *testing.T) {
	d.g.clients, d.g.replies = nil, nil
	d.both(t, func(w *world) { w.forget(t) })
}

func (d *prefilters) both(t *testing.T, do func(*world)) {
	for _, w := range []*world{d.shut, d.open} {
		w.enter(t)
		do(w)
	}
}

func (d *prefilters) step(t *testing.T) error {
	switch {
	case d.g.chance(1):
		d.shut.shut(t)
	case len(d.g.clients) > 0 && d.g.chance(3):
		key := kernelTuple(pick(d.g, pick(d.g, d.g.clients, d.g.replies)...))
		d.both(t, func(w *world) {
			for _, table := range []string{tracks, halfOpen} {
				_, err := w.flowTable(table).Delete(key) // in whichever table it is
				must(t, err)
			}
		})
	}
	frame := d.g.frame()
	at := pick(d.g, atXDP, atIngress, atIngress, atEgress)
	var got [2]model.Result
	var counts [2][model.Reasons]uint64
	for i, w := range []*world{d.shut, d.open} {
		w.enter(t)
		got[i] = w.run(t, at, frame)
		got[i].Frame = bytes.Clone(got[i].Frame)
		counts[i] = w.counts(t)
	}
	if !d.shut.met(at, got[0], got[1]) && !d.shut.met(at, got[1], got[0]) || counts[0] != counts[1] {
		return fmt.Errorf("at %s, for\n%swith the prefilter shut the result is %v\n%sopen %v\n%scounts: %v\n   open: %v", at,
			hex.Dump(frame), got[0].Action, hex.Dump(got[0].Frame), got[1].Action, hex.Dump(got[1].Frame), counts[0], counts[1])
	}
	ends, ok := model.Ends(frame)
	if !ok {
		return nil
	}
	shut, found := d.shut.becomes(ends)
	if open, other := d.open.becomes(ends); found != other || shut != open {
		return fmt.Errorf("at %s, %v: the conntrack entry says %v, with the prefilter open %v", at, ends, shut, open)
	}
	if found {
		d.g.clients, d.g.replies = append(d.g.clients, ends), append(d.g.replies, shut.Reverse())
	}
	return nil
}

// becomes is the translation of a tuple by its entry.
func (w *world) becomes(ends model.Tuple) (becomes model.Tuple, found bool) {
	for _, table := range []string{tracks, halfOpen} {
		if record, err := w.flowTable(table).Get(kernelTuple(ends)); err == nil && record != nil {
			return modelTuple(record.Xlate), true
		}
	}
	return model.Tuple{}, false
}
