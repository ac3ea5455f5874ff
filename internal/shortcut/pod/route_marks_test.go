// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	"beeline.io/beeline/internal/node/netdev"
)

// Rules by mark keep pods on the stack where packets may have a mark that the look-up does not take.
func TestRouteMarks(t *testing.T) {
	for _, c := range []struct {
		kind         string
		rules, taken bool
		want         int
	}{{"vxlan", true, false, 1}, {"ipip", true, false, 1}, {"vxlan", true, true, 0}, {"vxlan", false, false, 0}, {"device", true, false, 0}, {"wireguard", true, false, 0}} {
		up := netdev.Device{Index: 2, Name: "up", Kind: c.kind}
		n := &network{devices: []netdev.Device{up}, ruleMarks: c.rules}
		n.prepare()
		s := surroundings{network: n, uplinks: []netdev.Device{up}}
		if got := s.routeMarks(c.taken); len(got) != c.want || c.want > 0 && got[0].device != 0 {
			t.Errorf("%+v: filters %+v", c, got)
		}
	}
}
