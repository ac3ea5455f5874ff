// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// One change causes one GC pass at once, and one a second later that finds sockets that were connecting.
func TestJobFollowsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{udp: []bpf.StaleSocket{stale(unix.IPPROTO_UDP, 1)}}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, false)
		synctest.Wait()
		if st := j.Status(); st.EndedUDP != 1 || !st.Pending {
			t.Errorf("after the change: %+v", st)
		}
		w.mu.Lock()
		w.udp = []bpf.StaleSocket{stale(unix.IPPROTO_UDP, 2)}
		w.mu.Unlock()
		sleep(time.Hour)
		if want := []time.Duration{0, time.Second}; !slices.Equal(w.swept(), want) {
			t.Errorf("GC passes at %v, want %v", w.swept(), want)
		}
		if st := j.Status(); st.EndedUDP != 2 || st.Pending || st.Passes != 2 {
			t.Errorf("at the end: %+v", st)
		}
	})
}

// Constant changes cost at most a fifth of a CPU, and GC passes follow the last change.
func TestJobRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 100 * time.Millisecond}
		j := w.run(t, Config{}, Iterator)
		for range 1000 {
			j.Changed(true, false)
			sleep(10 * time.Millisecond)
		}
		if busy := time.Duration(len(w.swept())) * w.takes; busy > 2*time.Second+w.takes {
			t.Errorf("GC passes took %v of 10 s of changes", busy)
		}
		if len(w.swept()) < 19 {
			t.Errorf("in 10 s there were %d GC passes of 0.1 s", len(w.swept()))
		}
		last := time.Since(w.begin)
		sleep(time.Hour)
		swept := w.swept()
		if swept[len(swept)-1] < last-10*time.Millisecond+followUp {
			t.Errorf("the last change was at %v, the last GC pass at %v", last, swept[len(swept)-1])
		}
	})
}

// Neither protocol delays the other's GC passes.
func TestJobTakesProtocolsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 100 * time.Millisecond}
		j := w.run(t, Config{TCPDrain: time.Minute}, Iterator)
		for range 1000 {
			j.Changed(true, true)
			sleep(10 * time.Millisecond)
		}
		if tcp := w.tcpLooked(); len(w.swept()) < 8 || tcp < 8 {
			t.Errorf("in 10 s of changes of both there were %d GC passes for UDP, %d for TCP", len(w.swept()), tcp)
		}
	})
}

// A change during a GC pass is not lost.
func TestJobTakesChangesDuringASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 5 * time.Second}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, false)
		time.Sleep(4 * time.Second)
		j.Changed(true, false)
		sleep(time.Hour)
		if want := []time.Duration{5 * time.Second, 30 * time.Second}; !slices.Equal(w.swept(), want) {
			t.Errorf("GC passes end at %v, want %v", w.swept(), want)
		}
	})
}

// A failed pass is retried after 1 s, 2 s, 4 s and so on until it succeeds.
func TestJobTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{fails: errors.New("no memory")}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, false)
		sleep(time.Minute)
		if st := j.Status(); st.LastError == "" || !st.Pending || st.Passes < 5 || st.Passes > 8 {
			t.Errorf("after a minute of failures: %+v", st)
		}
		w.mu.Lock()
		w.fails = nil
		w.mu.Unlock()
		sleep(time.Minute)
		if st := j.Status(); st.LastError != "" || st.Pending || len(w.swept()) != 1 {
			t.Errorf("after a success: %+v", st)
		}
		w.mu.Lock()
		w.fails = errors.New("no memory")
		w.mu.Unlock()
		j.Changed(true, false)
		synctest.Wait()
		j.mu.Lock()
		defer j.mu.Unlock()
		if delay := j.udp.retry.Delay(); delay != firstRetry {
			t.Errorf("after another failure the next attempt is in %v, want %v", delay, firstRetry)
		}
	})
}

// A socket that the netlink method cannot terminate is an error, and is not counted.
func TestJobReportsWhatNetlinkCannotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{udp: []bpf.StaleSocket{stale(unix.IPPROTO_UDP, 1)}}
		j := w.run(t, Config{}, Netlink)
		j.mu.Lock()
		j.end = func(uint8, []bpf.StaleSocket) (int, error) { return 0, unix.EPERM }
		j.mu.Unlock()
		j.Changed(true, false)
		synctest.Wait()
		if st := j.Status(); st.LastError == "" || st.EndedUDP != 0 {
			t.Errorf("%+v", st)
		}
	})
}
