// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"testing"
)

// Marks of rules of both families are found with their masks, and other rules have none.
func TestRuleMarks(t *testing.T) {
	inNamespace(t, func() error {
		n, err := Follow()
		if err != nil {
			return err
		}
		for _, c := range []struct {
			do   string
			want []RuleMark
		}{
			{"rule add pref 100 from 192.0.2.1 lookup main", nil},
			{"rule add pref 101 fwmark 0x80/0xf0 lookup main", []RuleMark{{0x80, 0xf0}}},
			{"rule add pref 102 fwmark 0/0x100 lookup main", []RuleMark{{0x80, 0xf0}, {0, 0x100}}},
			{"rule del pref 102", []RuleMark{{0x80, 0xf0}}},
			{"-6 rule add pref 101 fwmark 1 lookup main", []RuleMark{{0x80, 0xf0}, {1, 0xffffffff}}},
			{"rule del pref 101", []RuleMark{{1, 0xffffffff}}},
		} {
			if err := ip(c.do); err != nil {
				return err
			}
			if got, err := n.RuleMarks(); err != nil || !slices.Equal(got, c.want) {
				return fmt.Errorf("after %q: %v, %w, want %v", c.do, got, err, c.want)
			}
		}
		return nil
	})
}

// Rules have the device by which packets arrive.
func TestRuleInput(t *testing.T) {
	inNamespace(t, func() error {
		if err := ip("rule add pref 100 iif d0 lookup main"); err != nil {
			return err
		}
		rules, err := new(Network).Rules()
		i := slices.IndexFunc(rules, func(r Rule) bool { return r.Priority == 100 })
		if err != nil || i < 0 || rules[i].Input != "d0" {
			return fmt.Errorf("%+v, %w, want one for input by d0", rules, err)
		}
		return nil
	})
}
