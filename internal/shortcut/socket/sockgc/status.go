// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Status is what was terminated, and how.
type Status struct {
	// Method is how sockets are terminated, never Auto. Why is the reason for the method.
	Method Method `json:"method"`
	Why    string `json:"why"`
	// TCPDrainSeconds is --tcp-drain-timeout; 0: TCP connections are not terminated.
	TCPDrainSeconds float64 `json:"tcpDrainSeconds"`
	// EndedUDP and EndedTCP count the terminated sockets since the agent started.
	EndedUDP uint64 `json:"endedUDP"`
	EndedTCP uint64 `json:"endedTCP"`
	// Draining is the number of removed backends with TCP connections that will be reset.
	Draining int `json:"draining"`

	Passes   uint64    `json:"passes"`
	LastPass time.Time `json:"lastPass,omitzero"`
	// LastSeconds is the duration of the last pass, Namespaces the number of namespaces it visited.
	LastSeconds float64 `json:"lastSeconds"`
	Namespaces  int     `json:"namespaces"`
	// Unreadable is the number of processes whose namespace the agent cannot read (netns.UnreadableError).
	// Such a namespace is visited only if it also has other processes.
	Unreadable int `json:"unreadable,omitempty"`
	// Pending means that a GC pass is running or scheduled.
	Pending bool `json:"pending"`
	// LastError is why the last GC passes were incomplete, or why none run.
	LastError string `json:"lastError,omitempty"`
}

// note records a finished GC pass.
func (st *Status) note(s *pass, took time.Duration) {
	if s.protocol == unix.IPPROTO_TCP {
		st.EndedTCP += uint64(s.ended)
	} else {
		st.EndedUDP += uint64(s.ended)
	}
	st.Passes++
	st.LastPass, st.LastSeconds, st.Namespaces = s.now, took.Seconds(), s.namespaces
	st.Unreadable = s.unreadable
}

// Status returns the current status.
func (j *Collector) Status() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	status := j.status
	status.Draining = len(j.drain.removed)
	status.Pending = j.running || !earlier(j.udp.next(), j.tcp.next()).IsZero()
	if err := errors.Join(j.udp.err, j.tcp.err); err != nil {
		status.LastError = err.Error()
	}
	return status
}
