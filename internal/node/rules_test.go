// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
)

// Rules of both families that match a mark are found, and no others.
func TestRulesMatchMarks(t *testing.T) {
	inNamespace(t, func() error {
		for _, c := range []struct {
			do   string
			want bool
		}{
			{"rule add pref 100 from 192.0.2.1 lookup main", false},
			{"rule add pref 101 fwmark 0x80/0x80 lookup main", true},
			{"rule del pref 101", false},
			{"-6 rule add pref 101 fwmark 1 lookup main", true},
		} {
			if err := ip(c.do); err != nil {
				return err
			}
			if got, err := RulesMatchMarks(); err != nil || got != c.want {
				return fmt.Errorf("after %q: %t, %w, want %t", c.do, got, err, c.want)
			}
		}
		return nil
	})
}
