// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"slices"
	"time"
)

// ProxySides is the common prefix of kube-proxy's sides.
const ProxySides = "kube-proxy, "

// SideBeeline is the side with Beeline.
const SideBeeline = "Beeline"

// BothFamilies are the families of addresses.
var BothFamilies = []string{"IPv4", "IPv6"}

// Turns is the order of so many sides in a round, which changes with the round: so any drift affects all of
// them.
func Turns(round, sides int) []int {
	order := make([]int, 0, sides)
	for i := range sides {
		order = append(order, (i+round)%sides)
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// ChangeTimeout is how long a change may take until it is visible.
const ChangeTimeout = 3 * time.Minute
