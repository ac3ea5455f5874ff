// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"sync"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// While the prefilter is rebuilt again and again, flows begin, get replies and continue: none of their packets
// ever passes the edge untranslated, at whatever step of a rebuild it arrives.
func TestPrefilterRebuiltMeanwhile(t *testing.T) {
	const flows, fewestRenewals = 4000, 30
	w := newScene(t)
	tables, err := bpf.NewTables(w.maps)
	must(t, err)
	prefilter, err := bpf.MapPrefilter(w.maps[bpf.EdgeTCMapPrefilters], tables.WaitForReaders)
	must(t, err)
	stop, renewed := make(chan struct{}), make(chan int, 1)
	end := sync.OnceValue(func() int { close(stop); return <-renewed })
	t.Cleanup(func() { end() }) // before the tables go to other tests
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
				t.Errorf("rebuild %d: %v", n, err)
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
				t.Fatalf("packet %d: action %v", n, got.Action)
			}
			answers[n] = reply(on(ends.Destination, ends.DestinationPort), on(ends.Source, ends.SourcePort), udp)
		}
		for _, k := range []int{n % flows, (n / 2) % flows} {
			if got := w.run(t, atIngress, answers[k].frame(t)); got.Action != model.ActionSend {
				t.Fatalf("reply %d: action %v after %d rebuilds", k, got.Action, seen)
			}
		}
		if got := w.run(t, atIngress, question.frame(t)); got.Action != model.ActionSend {
			t.Fatalf("packet %d: action %v after %d rebuilds", n, got.Action, seen)
		}
		if t.Failed() || n > 100*flows {
			break
		}
	}
	t.Logf("%d rounds of packets, %d rebuilds", n, end())
	if seen < fewestRenewals {
		t.Errorf("%d rebuilds seen, want %d", seen, fewestRenewals)
	}
}
