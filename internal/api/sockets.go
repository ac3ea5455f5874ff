// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// SocketTerminationOff is the method with which no socket is ended.
const SocketTerminationOff = "off"

// SocketTermination is which sockets were terminated, and how.
type SocketTermination struct {
	// Method is how sockets are terminated, never Auto. Why is the reason for the method.
	Method string `json:"method"`
	Why    string `json:"why"`
	// TCPDrainSeconds is --tcp-drain-timeout; 0: TCP connections are not terminated.
	TCPDrainSeconds float64 `json:"tcpDrainSeconds"`
	// EndedUDP and EndedTCP count the terminated sockets since the agent started.
	EndedUDP uint64 `json:"endedUDP"`
	EndedTCP uint64 `json:"endedTCP"`
	// DrainingBackends is the number of removed backends with TCP connections that will be reset.
	DrainingBackends int `json:"drainingBackends"`

	Passes   uint64    `json:"passes"`
	LastPass time.Time `json:"lastPass,omitzero"`
	// LastPassSeconds is the duration of the last pass, NetworkNamespaces the number of namespaces it visited.
	LastPassSeconds   float64 `json:"lastPassSeconds"`
	NetworkNamespaces int     `json:"networkNamespaces"`
	// UnreadableProcesses is the number of processes whose namespace the agent cannot read (netns.UnreadableError).
	// Such a namespace is visited only if it also has other processes.
	UnreadableProcesses int `json:"unreadableProcesses,omitempty"`
	// Pending means that a GC pass is running or scheduled.
	Pending bool `json:"pending"`
	// LastError is why the last GC passes were incomplete, or why none run.
	LastError string `json:"lastError,omitempty"`
}
