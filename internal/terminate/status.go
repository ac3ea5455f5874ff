// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Status is what was ended, and how.
type Status struct {
	// Method is how sockets are ended, never Auto, and Why says why so.
	Method Method `json:"method"`
	Why    string `json:"why"`
	// TCPDrainSeconds is --tcp-drain-timeout; 0: TCP connections are left alone.
	TCPDrainSeconds float64 `json:"tcpDrainSeconds"`
	// EndedUDP and EndedTCP are the sockets ended since the agent's start.
	EndedUDP uint64 `json:"endedUDP"`
	EndedTCP uint64 `json:"endedTCP"`
	// Draining is the number of backends that serve no more and have TCP
	// connections that will be reset.
	Draining int `json:"draining"`

	Sweeps    uint64    `json:"sweeps"`
	LastSweep time.Time `json:"lastSweep,omitzero"`
	// LastSeconds is how long it took, Namespaces how many it visited.
	LastSeconds float64 `json:"lastSeconds"`
	Namespaces  int     `json:"namespaces"`
	// Unreadable is the number of processes whose namespace the agent may not
	// know (netns.UnreadableError): it is visited only if others are in it, too.
	Unreadable int `json:"unreadable,omitempty"`
	// Pending: a sweep is going on, or waits for its time.
	Pending bool `json:"pending"`
	// LastError is why the last sweeps were not complete, or why there are none.
	LastError string `json:"lastError,omitempty"`
}

// note takes in a sweep that has ended.
func (st *Status) note(s *sweep, took time.Duration) {
	if s.protocol == unix.IPPROTO_TCP {
		st.EndedTCP += uint64(s.ended)
	} else {
		st.EndedUDP += uint64(s.ended)
	}
	st.Sweeps++
	st.LastSweep, st.LastSeconds, st.Namespaces = s.now, took.Seconds(), s.namespaces
	st.Unreadable = s.unreadable
}

// Status returns the counts so far.
func (j *Job) Status() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	status := j.status
	status.Draining = len(j.drain.gone)
	status.Pending = j.sweeping || !earlier(j.udp.next(), j.tcp.next()).IsZero()
	if err := errors.Join(j.udp.err, j.tcp.err); err != nil {
		status.LastError = err.Error()
	}
	return status
}
