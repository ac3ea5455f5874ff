// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/bench/result"
)

// warnings are the reasons why two runs should not be compared.
func warnings(old, now *result.File) []string {
	all := []string{} // not null in JSON
	differs := func(what string, before, after any) {
		if before != after {
			all = append(all, fmt.Sprintf("%s differs: %v before, %v now", what, before, after))
		}
	}
	differs("the CPU", old.Machine.CPU, now.Machine.CPU)
	differs("the number of CPUs", old.Machine.CPUs, now.Machine.CPUs)
	differs("the memory in MiB", old.Machine.MemoryMiB, now.Machine.MemoryMiB)
	differs("the kind of machine", kind(old.Machine), kind(now.Machine))
	differs("the kernel", old.Machine.Kernel, now.Machine.Kernel)
	differs("compilation of BPF", old.Machine.JIT, now.Machine.JIT)
	differs("the number of rounds", old.Settings.Runs, now.Settings.Runs)
	differs("the length of a slice in seconds", old.Settings.Slice, now.Settings.Slice)
	differs("--cpus", old.Settings.CPUs, now.Settings.CPUs)
	differs("the placing of one connection's ends", old.Settings.One, now.Settings.One)
	differs("the placing of many connections' ends", old.Settings.Two, now.Settings.Two)
	if !slices.Equal(old.Settings.Parts, now.Settings.Parts) {
		differs("--part", strings.Join(old.Settings.Parts, ","), strings.Join(now.Settings.Parts, ","))
	}
	if !slices.Equal(old.Settings.Peers, now.Settings.Peers) {
		differs("--peer", strings.Join(old.Settings.Peers, " "), strings.Join(now.Settings.Peers, " "))
	}
	for _, run := range []struct {
		name string
		*result.File
	}{{"old", old}, {"new", now}} {
		if n := run.Noise; n.Noisy() {
			all = append(all, fmt.Sprintf("the %s run was noisy: other processes used %.0f %% of the machine, and the hypervisor took %.0f %%", run.name, 100*n.Others, 100*n.Stolen))
		}
		if run.Settings.Smoke {
			all = append(all, fmt.Sprintf("the %s run is a smoke test: its figures mean nothing", run.name))
		}
	}
	if n := missing(old, now); n > 0 {
		all = append(all, fmt.Sprintf("%d rows are only in the old run", n))
	}
	if n := missing(now, old); n > 0 {
		all = append(all, fmt.Sprintf("%d rows are only in the new run", n))
	}
	return all
}

func kind(m result.Machine) string {
	switch {
	case m.Hypervisor != "":
		return "virtual machine of " + m.Hypervisor
	case m.Virtual:
		return "virtual machine"
	}
	return "machine"
}

// missing counts rows of one run that the other lacks.
func missing(of, from *result.File) (n int) {
	known := map[string]bool{}
	for _, r := range from.Rows {
		known[r.Identity()] = true
	}
	for _, r := range of.Rows {
		if !known[r.Identity()] {
			n++
		}
	}
	return n
}
