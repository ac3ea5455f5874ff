// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"fmt"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
)

// A scenario is a kind of traffic.
type scenario struct {
	Mode        endpoint.Mode `json:"mode"`
	Family      string        `json:"family"`      // "IPv4" or "IPv6"
	Backend     string        `json:"backend"`     // "local" or "remote", as seen from the client's node
	Connections int           `json:"connections"` // or UDP sockets
	Services    int           `json:"services"`    // in the cluster
}

func (s scenario) String() string {
	return fmt.Sprintf("%s, %s, %s backend, %d at a time, %d Services", s.Mode, s.Family, s.Backend, s.Connections, s.Services)
}

var modes = []endpoint.Mode{
	endpoint.ConnectRequestClose, endpoint.RequestResponse, endpoint.UDPUnconnected, endpoint.UDPConnected,
}

// Numbers of Services.
const (
	fewServices   = 10
	manySmokeTest = 50 // instead of harness.MostServices
)

// manyServices is the greater number of Services.
func manyServices(smoke bool) int {
	if smoke {
		return manySmokeTest
	}
	return harness.MostServices
}

func scenarios(smoke bool) []scenario {
	var all []scenario
	for _, mode := range modes {
		for _, connections := range []int{1, 64} {
			for _, family := range harness.BothFamilies {
				for _, backend := range []string{"local", "remote"} {
					all = append(all, scenario{mode, family, backend, connections, fewServices})
				}
			}
		}
	}
	for _, backend := range []string{"local", "remote"} {
		all = append(all,
			scenario{endpoint.ConnectRequestClose, "IPv4", backend, 64, manyServices(smoke)},
			scenario{endpoint.Stream, "IPv4", backend, 1, fewServices})
	}
	return all
}

// The Services of this part, by the number of their addresses; each has one backend, so that all sides use the
// same server.
var backends = map[string]struct {
	number uint8
	server string // the pod, for clients on node-a
	again  string // the same kind of pod, for clients on node-b
}{
	"local":  {101, "a2", "b1"},
	"remote": {102, "b1", "a2"},
}

// The sides of each comparison. The first is the limit that nothing can beat; the second is the same, between
// other pods: the difference between these two is what the instrument cannot see. In the third the nodes have
// no-op programs at their devices where Beeline has its own: the cost of any balancer there; only to another
// node.
const (
	sideBare = iota
	sideAgain
	sideNoOp
	sideDirect
	sideService
	sideProxyNFT
	sideProxyIPT
	sides
)

var sideNames = [sides]string{
	"direct, bare node", "direct, bare node (A/A)", "direct, no-op programs", "direct, Beeline node", "ClusterIP", "kube-proxy, nftables", "kube-proxy, iptables",
}
