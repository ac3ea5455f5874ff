// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// requiredCapabilities are needed to load, attach and read programs and tables. CAP_SYS_ADMIN includes CAP_BPF.
var requiredCapabilities = []struct {
	number int
	name   string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}}

// missingCapabilities returns the required capabilities that this process lacks.
func missingCapabilities() (missing []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return nil // the failing operation reports its own error
	}
	for _, c := range requiredCapabilities {
		if sets[c.number/32].Effective&(1<<(c.number%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}

// checkCapabilities names the missing capabilities and how to get them.
func checkCapabilities() error {
	missing := missingCapabilities()
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not permitted without %s: run it as root (sudo); in a pod with securityContext.privileged, or with these capabilities", strings.Join(missing, ", "))
}

const (
	minFiles    = 512   // an agent opens each program and table, and connections
	wantedFiles = 65536 // health checks need one each
)

// raiseFileLimit raises the limit of open files if it is low and the process may raise it. The Go runtime has
// already raised the soft limit to the hard one.
func raiseFileLimit() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Max >= wantedFiles {
		return
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wantedFiles, Max: wantedFiles}) // fails without CAP_SYS_RESOURCE
}

// checkFileLimit rejects a limit of open files that the agent would hit halfway through its start.
func checkFileLimit() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= minFiles {
		return err
	}
	return fmt.Errorf("%s, and the agent needs %d", fileLimitText(limit.Cur), minFiles)
}

func fileLimitText(limit uint64) string {
	return fmt.Sprintf("the limit of open files is %d: raise it (`ulimit -n %d`, or LimitNOFILE=%d in the unit)", limit, wantedFiles, wantedFiles)
}

// withHint adds to an error that a process limit caused how to raise that limit.
func withHint(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
			return fmt.Errorf("%w; %s", err, fileLimitText(limit.Cur))
		}
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES):
		if way := checkCapabilities(); way != nil && !strings.Contains(err.Error(), way.Error()) {
			return fmt.Errorf("%w; %w", err, way)
		}
	}
	return err
}
