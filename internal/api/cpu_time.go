// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns for how long the threads of the process that listens on a unix socket have run on a CPU or waited for
// one. ok is false if that is not known: nobody listens, or the process is in a PID namespace that is not below this
// one.
func cpuTime(socket string) (total time.Duration, ok bool) {
	conn, err := net.DialTimeout("unix", socket, answerTime)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, false
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || failed != nil || peer.Pid == 0 {
		return 0, false
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", peer.Pid))
	if err != nil {
		return 0, false
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		var run, wait int64 // nanoseconds (Documentation/scheduler/sched-stats.rst)
		if n, _ := fmt.Sscan(string(text), &run, &wait); n == 2 {
			total, ok = total+time.Duration(run+wait), true
		}
	}
	return total, ok
}
