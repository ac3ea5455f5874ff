// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// An Object is a message about an object of the kernel: its header, and its attributes without NLA_F_NESTED and such.
type Object struct {
	Header     []byte
	Attributes []syscall.NetlinkRouteAttr
}

// Objects dumps the objects that a request of a netlink family asks for. The header of the request selects them, those
// of the answers have a size.
func Objects(family, request, answer int, header []byte, size int) (all []Object, err error) {
	messages, err := Dump(func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(request, unix.NLM_F_DUMP)
		r.AddRawData(header)
		return r.Execute(family, uint16(answer))
	})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		o, err := ObjectOf(m, size)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// ObjectOf returns the object of a message whose header has a size.
func ObjectOf(message []byte, size int) (o Object, err error) {
	if len(message) < size {
		return o, fmt.Errorf("a message of %d bytes", len(message))
	}
	o.Header = message[:size]
	o.Attributes, err = nl.ParseRouteAttr(message[size:])
	for i := range o.Attributes {
		o.Attributes[i].Attr.Type &= nl.NLA_TYPE_MASK
	}
	return o, err
}
