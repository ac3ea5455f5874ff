// SPDX-License-Identifier: Apache-2.0

package api

import "os"

// Default paths of an agent.
const (
	DefaultBPFFS  = "/sys/fs/bpf/beeline"
	DefaultSocket = "/run/beeline/agent.sock"
)

// PinsLink is the symbolic link beside a socket to the agent's bpffs directory. It stays when the agent ends, as the
// pins do.
func PinsLink(socket string) string { return socket + ".pins" }

// PinsOf returns the bpffs directory of the agent that last listened on a socket: the default one if no agent has
// recorded another, and "" for another socket on which no agent has listened.
func PinsOf(socket string) string {
	if pins, err := os.Readlink(PinsLink(socket)); err == nil {
		return pins
	}
	if socket == DefaultSocket {
		return DefaultBPFFS
	}
	return ""
}
