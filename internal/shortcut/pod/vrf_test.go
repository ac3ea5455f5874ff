// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"reflect"
	"slices"
	"testing"

	"beeline.io/beeline/internal/node/netdev"
)

// Pods in a VRF stay on the stack, also those behind a bridge in a VRF. A bridge alone is none.
func TestVRFs(t *testing.T) {
	n := &network{devices: []netdev.Device{
		{Index: 1, Name: "red", Kind: "vrf"}, {Index: 2, Name: "cni0", Kind: "bridge", Master: 1}, {Index: 3, Name: "cni1", Kind: "bridge"},
		{Index: 4, Name: "a1", Kind: "veth", Master: 1}, {Index: 5, Name: "a2", Kind: "veth", Master: 2},
		{Index: 6, Name: "a3", Kind: "veth", Master: 3}, {Index: 7, Name: "a4", Kind: "veth"},
	}}
	n.prepare()
	s := surroundings{network: n, behind: map[int][]int{2: {5}, 3: {6}, 4: {4}, 5: {5}, 6: {6}, 7: {7}}}
	got := s.vrfs()
	slices.SortFunc(got, func(a, b filter) int { return a.device - b.device })
	if want := []filter{{device: 4, what: "VRF red"}, {device: 5, what: "VRF red of cni0"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("filters %+v, want %+v", got, want)
	}
}
