// SPDX-License-Identifier: Apache-2.0

package rtnetlink

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpAttempts: a list that changed while the kernel gave it is asked for again.
const dumpAttempts = 10

// Dump is a list of the kernel's that is whole: one that changed meanwhile, of which parts may be
// missing, is asked for again. It fails with netlink.ErrDumpInterrupted if that never ends.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpAttempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
