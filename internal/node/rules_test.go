// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
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
			want string
		}{
			{"rule add pref 100 from 192.0.2.1 lookup main", ""},
			{"rule add pref 101 fwmark 0x80/0xf0 lookup main", "0x80/0xf0"},
			{"rule add pref 102 fwmark 0/0x100 lookup main", "0x80/0xf0 0x0/0x100"},
			{"rule del pref 102", "0x80/0xf0"},
			{"-6 rule add pref 101 fwmark 1 lookup main", "0x80/0xf0 0x1/0xffffffff"},
			{"rule del pref 101", "0x1/0xffffffff"},
		} {
			if err := ip(c.do); err != nil {
				return err
			}
			rules, err := n.Rules()
			if err != nil {
				return err
			}
			var got []string
			for _, r := range rules {
				if r.MarkMask != 0 {
					got = append(got, fmt.Sprintf("%#x/%#x", r.Mark, r.MarkMask))
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("after %q: %s, want %s", c.do, got, c.want)
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
