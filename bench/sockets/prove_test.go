// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"strings"
	"testing"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/internal/bpf"
)

// The hooks counted what they should, or the run fails.
func TestProve(t *testing.T) {
	before := bpf.SocketCounters{ConnectPass: 5, ConnectBalance: 7, ConnectReject: 1, DatagramPass: 3}
	const tcp, sendto, send = endpoint.RequestResponse, endpoint.UDPUnconnected, endpoint.UDPConnected
	connections := endpoint.Result{Connected: 10}
	datagrams := endpoint.Result{Sent: 20, Received: 20}
	lossy := endpoint.Result{Sent: 20, Received: 18, Resent: 2}
	connected := endpoint.Result{Connected: 4, Sent: 20, Received: 20}
	type counters = bpf.SocketCounters
	for _, c := range []struct {
		what   string
		counts counters
		path   path
		mode   endpoint.Mode
		result endpoint.Result
		wrong  string // empty if it is proved
	}{
		{"every connection balanced", counters{ConnectBalance: 10}, balanced, tcp, connections, ""},
		{"every connection passed", counters{ConnectPass: 10}, passed, tcp, connections, ""},
		{"nothing seen", counters{}, unhooked, tcp, connections, ""},
		{"the hook did not run", counters{}, balanced, tcp, connections, "ConnectBalance 0 times instead of 10"},
		{"one connection missed", counters{ConnectBalance: 9}, balanced, tcp, connections, "ConnectBalance 9 times"},
		{"the direct side was balanced", counters{ConnectBalance: 10}, passed, tcp, connections, "ConnectBalance 10 times"},
		{"the bare side was hooked", counters{ConnectPass: 10}, unhooked, tcp, connections, "ConnectPass 10 times"},
		{"somebody else connected, too", counters{ConnectPass: 1, ConnectBalance: 10}, balanced, tcp, connections, "ConnectPass 1 times"},
		{"one was refused", counters{ConnectBalance: 10, ConnectReject: 1}, balanced, tcp, connections, "ConnectReject 1 times"},

		{"every datagram and its answer passed", counters{DatagramPass: 40}, passed, sendto, datagrams, ""},
		{"every datagram balanced", counters{DatagramBalance: 20, DatagramName: 20, FlowNew: 4, DatagramPass: 20}, balanced, sendto, datagrams, ""},
		{"another program's datagrams were balanced", counters{DatagramBalance: 1}, unhooked, sendto, datagrams, "DatagramBalance 1 times"},
		{"an answer without its name", counters{DatagramBalance: 20, DatagramName: 19, FlowNew: 4, DatagramPass: 20}, balanced, sendto, datagrams, "DatagramName 19"},
		{"a flow was lost", counters{DatagramBalance: 20, DatagramName: 20, FlowNew: 5, FlowStale: 1, DatagramPass: 20}, balanced, sendto, datagrams, "FlowStale 1"},
		{"a server's answer is missing", counters{DatagramPass: 39}, passed, sendto, datagrams, "DatagramPass 39 times instead of 40"},
		{"two lost on the way there", counters{DatagramPass: 38}, passed, sendto, lossy, ""},
		{"two lost on the way back", counters{DatagramPass: 40}, passed, sendto, lossy, ""},
		{"more lost than retransmitted", counters{DatagramPass: 37}, passed, sendto, lossy, "DatagramPass 37"},
		{"connected sockets balanced", counters{ConnectBalance: 4, DatagramPass: 20}, balanced, send, connected, ""},
		{"connected sockets passed", counters{ConnectPass: 4, DatagramPass: 20}, passed, send, connected, ""},
		{"a connected socket's datagrams were looked up", counters{ConnectBalance: 4, DatagramPass: 40}, balanced, send, connected, "DatagramPass 40"},
	} {
		after := harness.Combine(before, c.counts, func(a, b uint64) uint64 { return a + b })
		err := prove(before, after, countersOf(c.path, c.mode, 4, c.result), c.result.Resent)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want an error with %q", c.what, err, c.wrong)
		}
	}
}
