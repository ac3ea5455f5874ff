// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpAttempts is how often Dump tries to get a consistent dump.
const dumpAttempts = 10

// Dump repeats a netlink dump until it is consistent. If it never is, Dump returns the last result with
// netlink.ErrDumpInterrupted.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpAttempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
