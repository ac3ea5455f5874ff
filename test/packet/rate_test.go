// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/packet/model"
)

// ICMP errors keep to a rate, each CPU for itself: `icmpBurst` at once, `icmpRate` a
// second. What is over it is dropped, and counted. RSTs have no limit.
func TestRateOfErrors(t *testing.T) {
	const rate, burst = 2, 5
	w := newWorld(t, limits{icmpRate: rate, icmpBurst: burst})
	w.apply(t, w.scene())
	for _, at := range []hook{atXDP, atIngress} {
		for _, f := range families {
			t.Run(string(at)+"/"+f.name, func(t *testing.T) {
				w.enter(t)
				onOneCPU(t)
				w.forget(t)
				refused := f.question(udp, rejected)
				exceeded := f.question(udp, toRemote)
				exceeded.hops = 1
				big := f.question(udp, toNarrow).sized(t, narrowMTU+1)
				big.dontFragment = true
				began := time.Now()
				answered := 0
				for range 10 {
					for _, p := range []probe{refused, exceeded, big} {
						if w.run(t, at, p.frame(t)).Action == model.ActionSend {
							answered++
						}
					}
				}
				most := burst + 1 + int(time.Since(began).Seconds()*rate)
				if answered > most || answered == 30 {
					t.Errorf("%d errors in %v, want at most %d", answered, time.Since(began), most)
				}
				if over := w.counts(t)[model.DropRate]; over != uint64(30-answered) {
					t.Errorf("%d counted as too many, want %d", over, 30-answered)
				}
				reset := f.question(tcp, rejected)
				for range 10 {
					w.answers(t, at, reset)
				}
				for end := time.Now().Add(time.Minute); w.run(t, at, refused.frame(t)).Action != model.ActionSend; {
					if time.Now().After(end) {
						t.Fatal("no error is sent any more")
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
	}
}

// onOneCPU keeps the calling goroutine's thread, which ends with it, on one CPU.
func onOneCPU(t testing.TB) {
	t.Helper()
	var all, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &all))
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	must(t, unix.SchedSetaffinity(0, &one))
}
