// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"sync"
	"testing"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/packet/model"
)

// While the prefilter is rebuilt again and again, flows begin, are answered and go on: no packet
// of theirs is ever left alone, whatever part of a renewal it comes in.
func TestPrefilterRebuiltMeanwhile(t *testing.T) {
	const flows, fewestRenewals = 4000, 30
	w := newScene(t)
	tables, err := datapath.NewTables(w.maps)
	must(t, err)
	prefilter, err := datapath.MapPrefilter(w.maps[datapath.EdgeTCMapPrefilters], tables.WaitForReaders)
	must(t, err)
	stop, renewed := make(chan struct{}), make(chan int, 1)
	end := sync.OnceValue(func() int { close(stop); return <-renewed })
	t.Cleanup(func() { end() }) // before other tests get the tables
	renewals := make(chan struct{}, 1)
	go func() {
		n := 0
		defer func() { renewed <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := prefilter.Rebuild(func() error { return fillPrefilter(w, prefilter) }); err != nil {
				t.Errorf("renewal %d: %v", n, err)
				return
			}
			n++
			select {
			case renewals <- struct{}{}:
			default:
			}
		}
	}()
	w.enter(t)
	f := families[0]
	answers := make([]probe, flows)
	seen, n := 0, 0
	for ; n < flows || seen < fewestRenewals; n++ {
		select {
		case <-renewals:
			seen++
		default:
		}
		question := f.question(udp, toRemote)
		question.from = on(f.client, uint16(clientPort+n%flows))
		if n < flows {
			got := w.run(t, atIngress, question.frame(t))
			ends, ok := model.Ends(got.Frame)
			if !ok || got.Action != model.ActionSend {
				t.Fatalf("packet %d met %v", n, got.Action)
			}
			answers[n] = reply(on(ends.Destination, ends.DestinationPort), on(ends.Source, ends.SourcePort), udp)
		}
		for _, k := range []int{n % flows, (n / 2) % flows} {
			if got := w.run(t, atIngress, answers[k].frame(t)); got.Action != model.ActionSend {
				t.Fatalf("the answer %d met %v after %d renewals", k, got.Action, seen)
			}
		}
		if got := w.run(t, atIngress, question.frame(t)); got.Action != model.ActionSend {
			t.Fatalf("packet %d met %v after %d renewals", n, got.Action, seen)
		}
		if t.Failed() || n > 100*flows {
			break
		}
	}
	t.Logf("%d rounds of packets, %d renewals", n, end())
	if seen < fewestRenewals {
		t.Errorf("%d renewals seen, want %d", seen, fewestRenewals)
	}
}
