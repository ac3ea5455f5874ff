// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"reflect"
	"slices"
	"testing"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// Pods at stopped ports stay on the stack, and those at isolated ports if another pod of the bridge is at one.
func TestPortFilters(t *testing.T) {
	n := &network{devices: []netdev.Device{{Index: 1, Name: "cni0", Kind: "bridge"}, {Index: 2, Name: "cni1", Kind: "bridge"}}}
	n.prepare()
	s := surroundings{network: n, behind: map[int][]int{1: {4, 5}, 2: {6}, 4: {4}, 5: {5}, 6: {6}}}
	isolated := func(bridge int) node.BridgePort { return node.BridgePort{Bridge: bridge, Isolated: true} }
	for _, c := range []struct {
		name  string
		ports map[int]node.BridgePort
		want  []filter
	}{
		{"a stopped port", map[int]node.BridgePort{4: {Bridge: 1, Stopped: "locked"}, 5: {Bridge: 1}}, []filter{{device: 4, what: "port of bridge cni0: locked"}}},
		{"a stopped port of no pod", map[int]node.BridgePort{7: {Bridge: 1, Stopped: "locked"}}, nil},
		{"two isolated ports", map[int]node.BridgePort{4: isolated(1), 5: isolated(1)},
			[]filter{{device: 4, what: "port of bridge cni0: isolated"}, {device: 5, what: "port of bridge cni0: isolated"}}},
		{"one isolated port", map[int]node.BridgePort{4: isolated(1), 5: {Bridge: 1}}, nil},
		{"one isolated port of each bridge", map[int]node.BridgePort{4: isolated(1), 6: isolated(2)}, nil},
	} {
		got := s.portFilters(c.ports)
		slices.SortFunc(got, func(a, b filter) int { return a.device - b.device })
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: filters %+v, want %+v", c.name, got, c.want)
		}
	}
}
