// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// ICMP errors have a rate limit per CPU: a burst of `icmpBurst`, and `icmpRate` a second. What exceeds it is
// dropped, and counted. RSTs have no limit. "Too big" has a budget of its own: path MTU discovery (RFC 1191,
// RFC 8201) continues when refusals and "time exceeded" have used up theirs, and vice versa.
func TestRateOfErrors(t *testing.T) {
	const rate, burst, tries = 2, 5, 20
	w := newWorld(t, limits{icmpRate: rate, icmpBurst: burst})
	w.apply(t, w.scene())
	for _, at := range []hook{atXDP, atIngress} {
		for _, f := range families {
			for _, bigFirst := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", at, f.name, bigFirst), func(t *testing.T) {
					w.enter(t)
					onOneCPU(t)
					w.forget(t)
					w.fillICMPBudgets(t)
					refused := f.question(udp, rejected)
					exceeded := f.question(udp, toRemote)
					exceeded.hops = 1
					big := f.question(udp, toNarrow).sized(t, narrowMTU+1)
					big.dontFragment = true
					budgets := [][]probe{{refused, exceeded}, {big}}
					if bigFirst {
						slices.Reverse(budgets)
					}
					began, over := time.Now(), uint64(0)
					for _, kinds := range budgets {
						answered := 0
						for n := range tries {
							if w.run(t, at, kinds[n%len(kinds)].frame(t)).Action == model.ActionSend {
								answered++
							} else {
								over++
							}
						}
						most := burst + 1 + int(time.Since(began).Seconds()*rate)
						if answered < burst || answered > most {
							t.Errorf("%d of %d errors in %v, want %d to %d", answered, tries, time.Since(began), burst, most)
						}
					}
					if got := w.counts(t)[model.ICMPRateLimited]; got != over {
						t.Errorf("%d counted as over the limit, want %d", got, over)
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
}

// fillICMPBudgets refills the budgets for ICMP errors.
func (w *world) fillICMPBudgets(t testing.TB) {
	t.Helper()
	cpus, err := ebpf.PossibleCPU()
	must(t, err)
	for budget := range w.maps[bpf.EdgeTCMapIcmpBuckets].MaxEntries() {
		w.put(t, bpf.EdgeTCMapIcmpBuckets, budget, make([]uint64, cpus))
	}
}

// onOneCPU pins the calling goroutine's thread, which ends with it, to one CPU.
func onOneCPU(t testing.TB) { onCPU(t, cpus(t)[0]) }

// onCPU pins the calling goroutine's thread to a CPU.
func onCPU(t testing.TB, cpu int) {
	t.Helper()
	var one unix.CPUSet
	one.Set(cpu)
	must(t, unix.SchedSetaffinity(0, &one))
}

// cpus are those that this process may use.
func cpus(t testing.TB) (all []int) {
	t.Helper()
	var set unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &set))
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}
