// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// proxySides is the common prefix of kube-proxy's sides.
const proxySides = "kube-proxy, "

// sideBeeline is the side with Beeline.
const sideBeeline = "Beeline"

// bothFamilies are the families of addresses.
var bothFamilies = []string{"IPv4", "IPv6"}

// turns is the order of so many sides in a round, which changes with the round: so any drift affects all of
// them.
func turns(round, sides int) []int {
	order := make([]int, 0, sides)
	for i := range sides {
		order = append(order, (i+round)%sides)
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}
