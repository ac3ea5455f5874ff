// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"path/filepath"
	"slices"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// AgentDirectories returns the directories on BPF file systems mounted here in which an agent has pinned
// something, down to agentDirectoryDepth below each mount.
func AgentDirectories() (all []string) {
	for _, mount := range pinfs.Mounts() {
		pattern := mount
		for range agentDirectoryDepth {
			pins, _ := filepath.Glob(filepath.Join(pattern, "tables_v*", "*"))
			for _, pin := range pins {
				all = append(all, filepath.Dir(filepath.Dir(pin)))
			}
			pattern = filepath.Join(pattern, "*")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

const agentDirectoryDepth = 4

// HasPins reports whether a bpffs directory has pins of an agent.
func HasPins(path string) bool {
	for _, dir := range []string{"tables_v*", "links", "programs"} {
		if pins, _ := filepath.Glob(filepath.Join(path, dir, "*")); len(pins) > 0 {
			return true
		}
	}
	return false
}

// AgentRunning reports whether an agent uses a bpffs directory, and returns its pid, 0 if it is in another PID
// namespace.
func AgentRunning(bpffs string) (running bool, pid int) { return pinfs.Holder(bpffs) }
