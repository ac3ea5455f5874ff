// SPDX-License-Identifier: Apache-2.0

// Package kernelclock reads the clock of BPF programs, which is that of the initial time namespace.
package kernelclock

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns what bpf_ktime_get_ns returns: CLOCK_MONOTONIC, in nanoseconds. It never jumps.
func Now() uint64 { return at(unix.CLOCK_MONOTONIC) }

// Coarse returns what bpf_ktime_get_coarse_ns returns, in nanoseconds: Now at the last tick.
func Coarse() uint64 { return at(unix.CLOCK_MONOTONIC_COARSE) }

// Seconds and CoarseSeconds are the same in whole seconds, as the tables have them.
func Seconds() uint32       { return uint32(Now() / uint64(time.Second)) }
func CoarseSeconds() uint32 { return uint32(Coarse() / uint64(time.Second)) }

func at(clock int32) uint64 {
	var now unix.Timespec
	unix.ClockGettime(clock, &now) // fails only for clocks that do not exist
	return uint64(now.Nano() - offset())
}

// offset is how far CLOCK_MONOTONIC of this process's time namespace is ahead, in nanoseconds. It cannot change
// while a process is in the namespace (time_namespaces(7)).
var offset = sync.OnceValue(func() int64 {
	own, err := os.Readlink("/proc/self/ns/time")
	children, childErr := os.Readlink("/proc/self/ns/time_for_children")
	if err != nil || childErr != nil || own != children {
		return 0 // without time namespaces (before Linux 5.6); the file is about those of children
	}
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	return monotonicOffset(string(text))
})

// monotonicOffset reads a line "monotonic SECONDS NANOSECONDS".
func monotonicOffset(text string) int64 {
	for line := range strings.Lines(text) {
		var name string
		var seconds, nanoseconds int64
		if n, _ := fmt.Sscan(line, &name, &seconds, &nanoseconds); n == 3 && name == "monotonic" {
			return seconds*int64(time.Second) + nanoseconds
		}
	}
	return 0
}
