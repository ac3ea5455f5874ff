// SPDX-License-Identifier: Apache-2.0

package rtnetlink

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that was interrupted is asked for again, and one that fails is not.
func TestDump(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		answers []error // the last one again and again
		asked   int
		want    error
	}{
		{[]error{nil}, 1, nil},
		{[]error{netlink.ErrDumpInterrupted, fmt.Errorf("again: %w", netlink.ErrDumpInterrupted), nil}, 3, nil},
		{[]error{netlink.ErrDumpInterrupted, failed}, 2, failed},
		{[]error{netlink.ErrDumpInterrupted}, dumpAttempts, netlink.ErrDumpInterrupted},
	} {
		asked := 0
		all, err := Dump(func() ([]int, error) {
			err := c.answers[min(asked, len(c.answers)-1)]
			asked++
			return []int{asked}, err
		})
		if asked != c.asked || !errors.Is(err, c.want) || !slices.Equal(all, []int{asked}) {
			t.Errorf("%v: asked %d times, %v, %v; want %d times, and %v", c.answers, asked, all, err, c.asked, c.want)
		}
	}
}
