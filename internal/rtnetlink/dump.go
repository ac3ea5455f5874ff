// SPDX-License-Identifier: Apache-2.0

package rtnetlink

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpAttempts: a list that changed while the kernel gave it is asked for again.
const dumpAttempts = 10

// Dump asks the kernel for a list until it has not changed while it was given.
// netlink.ErrDumpInterrupted, with what came last, if that does not happen.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpAttempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
