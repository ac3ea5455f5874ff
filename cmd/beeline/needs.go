// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// needed are the capabilities without which nothing can be loaded, attached or read.
// CAP_SYS_ADMIN stands for CAP_BPF.
var needed = []struct {
	number int
	name   string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}}

// missingCapabilities are those that this process has not.
func missingCapabilities() (missing []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return nil // what fails says so itself
	}
	for _, c := range needed {
		if sets[c.number/32].Effective&(1<<(c.number%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}

// checkCapabilities says what to do where there are too few.
func checkCapabilities() error {
	missing := missingCapabilities()
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not permitted without %s: run it as root (sudo); in a pod with securityContext.privileged, or with these capabilities", strings.Join(missing, ", "))
}

const (
	fewestFiles = 512   // an agent opens each program and table, and connections besides
	wantedFiles = 65536 // health checks need one each
)

// raiseFileLimit raises the limit of open files where it is low and that is permitted. The
// runtime has raised it to the hard limit already.
func raiseFileLimit() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Max >= wantedFiles {
		return
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wantedFiles, Max: wantedFiles}) // fails without CAP_SYS_RESOURCE
}

// checkFileLimit refuses to begin what could only fail half done.
func checkFileLimit() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= fewestFiles {
		return err
	}
	return fmt.Errorf("%s, and the agent needs %d", fileLimitText(limit.Cur), fewestFiles)
}

func fileLimitText(limit uint64) string {
	return fmt.Sprintf("the limit of open files is %d: raise it (`ulimit -n %d`, or LimitNOFILE=%d in the unit)", limit, wantedFiles, wantedFiles)
}

// withWayOut adds to an error what to do about the limits of this process, if these are its
// reason.
func withWayOut(err error) error {
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
