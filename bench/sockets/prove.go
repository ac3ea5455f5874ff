// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"reflect"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/internal/bpf"
)

// A path is what handles traffic.
type path string

const (
	unhooked path = "unhooked" // nothing of Beeline
	passed   path = "passed"   // the hooks, which pass it
	balanced path = "balanced" // the hooks, which send it to a backend
)

// countersOf is exactly what the hooks must count for a client's traffic.
func countersOf(p path, mode endpoint.Mode, sockets int, r endpoint.Result) bpf.SocketCounters {
	var c bpf.SocketCounters
	if p == unhooked {
		return c
	}
	if p == balanced {
		c.ConnectBalance = r.Connected
	} else {
		c.ConnectPass = r.Connected
	}
	if mode.Datagrams() {
		c.DatagramPass = r.Sent // the server's replies
	}
	if mode == endpoint.UDPUnconnected {
		if p == balanced {
			c.FlowNew = uint64(sockets)
			c.DatagramBalance, c.DatagramName = r.Sent, r.Received
		} else {
			c.DatagramPass += r.Sent
		}
	}
	return c
}

// prove checks that the hooks have counted exactly what they should. `lost` datagrams may have been lost before
// the server answered them.
func prove(before, after, want bpf.SocketCounters, lost uint64) error {
	got := harness.Combine(after, before, func(a, b uint64) uint64 { return a - b })
	if want.DatagramPass-got.DatagramPass <= lost {
		want.DatagramPass = got.DatagramPass
	}
	var wrong []error
	for field, value := range reflect.ValueOf(got).Fields() {
		if !field.IsExported() {
			continue
		}
		if should := reflect.ValueOf(want).FieldByIndex(field.Index).Uint(); value.Uint() != should {
			wrong = append(wrong, fmt.Errorf("the hooks have counted %s %d times instead of %d", field.Name, value.Uint(), should))
		}
	}
	return errors.Join(wrong...)
}
