// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// R30: without a drain timeout TCP sockets are not scanned.
func TestJobLeavesTCPAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{tcp: []bpf.StaleSocket{stale(unix.IPPROTO_TCP, 1)}}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, true)
		sleep(time.Hour)
		if w.tcpLooked() != 0 || len(w.swept()) != 2 {
			t.Errorf("TCP was scanned %d times, UDP had %d GC passes", w.tcpLooked(), len(w.swept()))
		}
	})
}

// With a drain timeout a connection is reset when its backend has been out of service for that long, counted
// from when it was first found, and again from zero if it served in between.
func TestJobDrainsTCP(t *testing.T) {
	const drain = time.Minute
	first := stale(unix.IPPROTO_TCP, 1)
	backend := first.Connection()
	for _, test := range []struct {
		name string
		then func(w *world, j *Collector)
		want []time.Duration
	}{
		{"stays away", func(*world, *Collector) {}, []time.Duration{drain}},
		{"a second connection to it is found late", func(w *world, j *Collector) {
			time.Sleep(drain / 2)
			w.mu.Lock()
			w.tcp = append(w.tcp, stale(unix.IPPROTO_TCP, 2))
			w.mu.Unlock()
			j.Changed(false, true)
		}, []time.Duration{drain, drain}},
		{"serves again", func(w *world, j *Collector) {
			time.Sleep(drain / 2)
			w.returns(j, backend, true)
		}, nil},
		{"serves again for a moment", func(w *world, j *Collector) {
			time.Sleep(drain / 2)
			w.returns(j, backend, true)
			w.returns(j, backend, false)
		}, []time.Duration{drain + drain/2}},
		{"another change meanwhile", func(w *world, j *Collector) {
			time.Sleep(drain / 2)
			j.Changed(true, true)
		}, []time.Duration{drain}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{tcp: []bpf.StaleSocket{first}}
				j := w.run(t, Config{TCPDrain: drain}, Iterator)
				j.Changed(false, true)
				synctest.Wait()
				test.then(w, j)
				sleep(time.Hour)
				if !slices.Equal(w.resets, test.want) {
					t.Errorf("resets at %v, want %v", w.resets, test.want)
				}
				if st := j.Status(); st.Pending || st.DrainingBackends != 0 || st.EndedTCP != uint64(len(test.want)) {
					t.Errorf("at the end: %+v", st)
				}
			})
		})
	}
}

// A backend that was restored between the scan and its recording is not draining.
func TestDrainIsNotOfABackendThatServes(t *testing.T) {
	s := stale(unix.IPPROTO_TCP, 1)
	serves := true
	d := drain{timeout: time.Second, removed: map[bpf.Connection]removedBackend{}, serves: func(bpf.Connection) bool { return serves }}
	now := time.Now()
	if d.found(s.Connection(), now) || len(d.removed) != 0 {
		t.Errorf("it is draining: %v", d.removed)
	}
	serves = false
	if d.found(s.Connection(), now.Add(time.Hour)) {
		t.Error("its drain timeout passes at once")
	}
}
