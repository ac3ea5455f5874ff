// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/netdev"
)

// RulesMatchMarks reports whether a routing rule matches marks of packets. Changes are events of RTNLGRP_IPV4_RULE and
// RTNLGRP_IPV6_RULE.
func RulesMatchMarks() (bool, error) {
	rules, err := netdev.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("list routing rules: %w", err)
	}
	return slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Mark != 0 || r.Mask != nil }), nil
}
