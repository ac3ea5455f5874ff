// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A window is the measured time of a client.
type window struct {
	processes []int
	start     time.Time // of the measured time
	end       time.Time

	started, ended bool
	began, last    time.Time
	cpuBefore, cpu time.Duration
}

func (w *window) warmUp(warmup, measure time.Duration, processes []int) {
	w.processes = processes
	w.start = time.Now().Add(warmup)
	w.end = w.start.Add(measure)
}

// count reports whether an operation that ends now belongs to the measured time, and notes when that begins and
// ends.
func (w *window) count(now time.Time) bool {
	if !w.started {
		if now.Before(w.start) {
			return false
		}
		// This operation began before. The measurement begins with its end.
		w.started, w.cpuBefore = true, w.cpuTime()
		w.began = time.Now()
		w.end = w.began.Add(w.end.Sub(w.start))
		return false
	}
	if w.ended {
		return false
	}
	if now.After(w.end) {
		w.ended, w.last = true, now
		w.cpu = w.cpuTime() - w.cpuBefore
	}
	return true
}

// cpuTime is the exact CPU time of this process and the others so far.
func (w *window) cpuTime() time.Duration {
	sum := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	for _, pid := range w.processes {
		sum += clock(cpuClock(pid))
	}
	return sum
}

// cpuClock is the clock of a process's CPU time, as clock_getcpuclockid(3) makes it: the complement of the pid,
// and CPUCLOCK_SCHED.
func cpuClock(pid int) int32 { return int32(^pid<<3 | 2) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// CPUTime is the CPU time that a process has used so far.
func CPUTime(pid int) time.Duration { return clock(cpuClock(pid)) }

// A meter stores the times of a client's operations.
type meter struct {
	window  window
	samples []uint32 // ns of each operation
}

func newMeter(measure time.Duration) meter {
	m := meter{samples: make([]uint32, 0, int(measure.Seconds()*500_000)+1000)}
	for i := range m.samples[:cap(m.samples)] {
		m.samples[:cap(m.samples)][i] = 1 // so that no page fault happens later
	}
	return m
}

// note counts an operation that ends now.
func (m *meter) note(begun, now time.Time) {
	if m.window.count(now) {
		m.samples = append(m.samples, uint32(min(now.Sub(begun), 1<<32-1)))
	}
}

// report sets the results.
func (m *meter) report(r *Result) {
	slices.Sort(m.samples)
	at := func(q float64) time.Duration {
		if len(m.samples) == 0 {
			return 0
		}
		return time.Duration(m.samples[min(int(q*float64(len(m.samples))), len(m.samples)-1)])
	}
	r.Operations, r.Elapsed, r.CPU = uint64(len(m.samples)), m.window.last.Sub(m.window.began), m.window.cpu
	r.P10, r.P50, r.P90, r.P99 = at(0.10), at(0.50), at(0.90), at(0.99)
}
