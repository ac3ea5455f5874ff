// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
)

// Status is what was terminated, and how.
type Status = api.SocketTermination

// record adds a finished GC pass.
func record(st *Status, s *pass, took time.Duration) {
	if s.protocol == unix.IPPROTO_TCP {
		st.EndedTCP += uint64(s.ended)
	} else {
		st.EndedUDP += uint64(s.ended)
	}
	st.Passes++
	st.LastPass, st.LastPassSeconds, st.NetworkNamespaces = s.now, took.Seconds(), s.namespaces
	st.UnreadableProcesses = s.unreadable
}

// Status returns the current status.
func (j *Collector) Status() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	status := j.status
	status.DrainingBackends = len(j.drain.removed)
	status.Pending = j.running || !earlier(j.udp.next(), j.tcp.next()).IsZero()
	if err := errors.Join(j.udp.err, j.tcp.err); err != nil {
		status.LastError = err.Error()
	}
	return status
}
