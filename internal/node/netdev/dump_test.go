// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// Dump repeats an interrupted dump, but not forever; it returns any other error at once.
func TestDump(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		interrupted int
		then, want  error
		asked       int
	}{
		{0, nil, nil, 1}, {3, nil, nil, 4}, {1000, nil, netlink.ErrDumpInterrupted, dumpAttempts}, {1, other, other, 2},
	} {
		asked := 0
		all, err := Dump(func() ([]int, error) {
			if asked++; asked <= c.interrupted {
				return nil, netlink.ErrDumpInterrupted
			}
			return []int{asked}, c.then
		})
		if asked != c.asked || !errors.Is(err, c.want) || err == nil && (len(all) != 1 || all[0] != asked) {
			t.Errorf("interrupted %d times, then %v: %v (%v) after %d attempts", c.interrupted, c.then, all, err, asked)
		}
	}
}
