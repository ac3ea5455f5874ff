// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// SocketsOff is the method with which no socket is ended.
const SocketsOff = "off"

// Sockets is what was terminated, and how.
type Sockets struct {
	// Method is how sockets are terminated, never Auto. Why is the reason for the method.
	Method string `json:"method"`
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
