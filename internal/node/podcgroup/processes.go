// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Processes lists the processes of a cgroup and those below it.
func Processes(directory string) (pids []string, err error) {
	err = WalkCgroups(directory, func(_ string, found []string) error {
		pids = append(pids, found...)
		return nil
	})
	return pids, err
}

// WalkCgroups calls a function with a cgroup, each below it, and their processes. The function may return fs.SkipDir
// and fs.SkipAll.
func WalkCgroups(directory string, visit func(path string, pids []string) error) error {
	return filepath.WalkDir(directory, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		return visit(path, strings.Fields(string(text)))
	})
}
