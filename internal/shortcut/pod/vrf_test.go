// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"reflect"
	"slices"
	"testing"
)

// Pods in a VRF stay on the stack, also those behind a bridge in a VRF. A bridge alone is none.
func TestVRFs(t *testing.T) {
	n := &network{links: []link{
		{index: 1, name: "red", kind: "vrf"}, {index: 2, name: "cni0", kind: "bridge", master: 1}, {index: 3, name: "cni1", kind: "bridge"},
		{index: 4, name: "a1", kind: "veth", master: 1}, {index: 5, name: "a2", kind: "veth", master: 2},
		{index: 6, name: "a3", kind: "veth", master: 3}, {index: 7, name: "a4", kind: "veth"},
	}}
	n.prepare()
	s := surroundings{network: n, behind: map[int][]int{2: {5}, 3: {6}, 4: {4}, 5: {5}, 6: {6}, 7: {7}}}
	got := s.vrfs()
	slices.SortFunc(got, func(a, b filter) int { return a.device - b.device })
	if want := []filter{{device: 4, what: "VRF red"}, {device: 5, what: "VRF red of cni0"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("filters %+v, want %+v", got, want)
	}
}
