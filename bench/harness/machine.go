// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/result"
)

func thisMachine() result.Machine {
	var m result.Machine
	info, _ := os.ReadFile("/proc/cpuinfo") // missing values stay empty
	for line := range strings.Lines(string(info)) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "processor":
			m.CPUs++
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Virtual = strings.Contains(value+" ", " hypervisor ")
		}
	}
	for _, name := range []string{"sys_vendor", "product_name"} {
		text, _ := os.ReadFile("/sys/class/dmi/id/" + name)
		m.Hypervisor = strings.TrimSpace(m.Hypervisor + " " + strings.TrimSpace(string(text)))
	}
	if !m.Virtual {
		m.Hypervisor = "" // it is the machine's manufacturer
	}
	jit, _ := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	m.JIT = strings.TrimSpace(string(jit)) != "0"
	var sys unix.Sysinfo_t
	if unix.Sysinfo(&sys) == nil {
		m.MemoryMiB = sys.Totalram * uint64(sys.Unit) >> 20
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return m
}

// LoadAverage is the load average as the kernel prints it.
func LoadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// Where the two ends of a connection run. Unpinned they would move, and times would have two peaks: one for a
// wake-up on the same CPU and one for another. These are the values of --cpus.
const (
	CPUsAuto = "auto"
	CPUsOne  = "one"
	CPUsTwo  = "two"
)

// ChooseCPUs returns the last CPUs that this process may use; interrupts mostly go to the first.
func ChooseCPUs() (one, two result.CPUPair, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return one, two, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var usable []int
	for cpu := 0; len(usable) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			usable = append(usable, cpu)
		}
	}
	last := usable[len(usable)-1]
	other := usable[max(0, len(usable)-2)]
	return result.CPUPair{Client: last, Server: last}, result.CPUPair{Client: last, Server: other}, nil
}

// PairOf is where the ends of so many connections run. With one connection, one of the ends is always idle: on
// one CPU that costs no time, and avoids waking a sleeping CPU, which on a virtual machine would be most of the
// measured time and nearly all of its noise.
func PairOf(s result.Settings, connections int) result.CPUPair {
	if s.CPUs == CPUsOne || s.CPUs == CPUsAuto && connections == 1 {
		return s.One
	}
	return s.Two
}

// SoftirqThreads are the kernel threads that handle packets when a CPU has too many of them for the current
// process: their time belongs to the traffic.
func SoftirqThreads() []int {
	var pids []int
	paths, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range paths {
		name, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(name), "ksoftirqd/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Usage is the CPU time of the whole machine and of the benchmark.
type Usage struct {
	Busy, Stolen, All time.Duration
	own               time.Duration
}

// UsageNow reads the usage so far. Processes count as the benchmark's own once they have ended; at the end of a run all
// of them have.
func UsageNow() Usage {
	var u Usage
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
func NoiseBetween(before, after Usage) result.Noise {
	all := (after.All - before.All).Seconds()
	if all <= 0 {
		return result.Noise{}
	}
	others := (after.Busy - before.Busy) - (after.own - before.own)
	return result.Noise{Others: max(0, others.Seconds()/all), Stolen: (after.Stolen - before.Stolen).Seconds() / all}
}

// Memory is that of a process, in MiB.
type Memory struct{ Resident, Anonymous, Peak float64 }

// MemoryOf returns the memory of a process now, and the most that was resident.
func MemoryOf(pid int) (m Memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		for format, to := range map[string]*float64{"VmRSS: %f kB": &m.Resident, "RssAnon: %f kB": &m.Anonymous, "VmHWM: %f kB": &m.Peak} {
			if n, _ := fmt.Sscanf(line, format, to); n == 1 {
				*to /= 1024
			}
		}
	}
	return m, err
}

// CloseAll closes all of them.
func CloseAll[C io.Closer](all []C) (err error) {
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Pause waits, unless ctx ends before.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
