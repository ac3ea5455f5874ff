// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// AgentDirectories returns the directories on BPF file systems mounted here in which an agent has pinned
// something, down to agentDirectoryDepth below each mount.
func AgentDirectories() (all []string) {
	for _, mount := range bpfMounts() {
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

// bpfMounts reads proc(5), mountinfo: the fifth field is the mount point, and the file
// system's type follows a hyphen.
func bpfMounts() (all []string) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		mount, kind, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mount); len(fields) > 4 && strings.HasPrefix(kind, "bpf ") {
			all = append(all, fields[4])
		}
	}
	return all
}

// HasPins reports whether a bpffs directory has pins of an agent.
func HasPins(bpffs string) bool { return hasPins(bpffs) }
