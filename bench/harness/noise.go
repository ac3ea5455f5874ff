// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/result"
)

// usage is the CPU time of the whole machine and of the benchmark.
type usage struct {
	Busy, Stolen, All time.Duration
	own               time.Duration
}

// UsageNow reads it. Processes count as the benchmark's own once they have ended; at the end of a run all of
// them have.
func UsageNow() usage {
	var u usage
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	// cpu user nice system idle iowait irq softirq steal ..., see proc_stat(5)
	for i, field := range strings.Fields(line) {
		ticks, err := strconv.Atoi(field)
		if err != nil || i > 8 {
			continue // the name, and guest times, which user time includes
		}
		const tick = time.Second / 100 // USER_HZ
		u.All += time.Duration(ticks) * tick
		switch i {
		case 4, 5: // idle, and iowait
		case 8:
			u.Stolen += time.Duration(ticks) * tick
		default:
			u.Busy += time.Duration(ticks) * tick
		}
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if unix.Getrusage(who, &r) == nil {
			u.own += time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	return u
}

// NoiseBetween is the share of the machine that the benchmark did not use.
func NoiseBetween(before, after usage) result.Noise {
	all := (after.All - before.All).Seconds()
	if all <= 0 {
		return result.Noise{}
	}
	others := (after.Busy - before.Busy) - (after.own - before.own)
	return result.Noise{Others: max(0, others.Seconds()/all), Stolen: (after.Stolen - before.Stolen).Seconds() / all}
}
