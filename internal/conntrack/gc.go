// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// CollectGarbage deletes expired flows, and returns their number; now is in seconds of CLOCK_MONOTONIC. The
// later of a flow's two entries determines its expiry, and both are deleted. visit is called with each
// entry before that, and whether it is in Tables.Assured; it may be nil.
func CollectGarbage(tables *Tables, timeouts Timeouts, now uint32, visit func(assured bool, key Tuple, e *Entry)) (expired uint64, err error) {
	for i, table := range tables.All() {
		var failed error
		var see func(Tuple, *Entry)
		if visit != nil {
			see = func(key Tuple, e *Entry) { visit(i > 0, key, e) }
		}
		n, err := deleteFlows(table, see, nil, func(key Tuple, e *Entry) bool {
			if idle(e.LastSeen, now) < timeouts.shortest(key.Protocol, e) {
				return false
			}
			other, err := otherEntry(table, key, e)
			failed = errors.Join(failed, err)
			return err == nil && timeouts.expired(key, e, other, now)
		})
		expired += n
		if err = errors.Join(err, failed); err != nil {
			return expired, err
		}
	}
	return expired, nil
}

// deleteFlows deletes both entries of each flow if over returns true for one of them, and returns the
// number of flows. over is called again right before an entry is deleted. visit is called with each entry first, and
// gone with an entry of each deleted flow; both may be nil.
func deleteFlows(table Table, visit func(Tuple, *Entry), gone func(Tuple), over func(Tuple, *Entry) bool) (deleted uint64, err error) {
	var failed error
	err = table.Walk(func(key Tuple, e *Entry) bool {
		if visit != nil {
			visit(key, e)
		}
		if !over(key, e) {
			return true
		}
		before := deleted
		failed = deleteFlow(table, key, e, over, &deleted)
		if deleted > before && gone != nil {
			gone(key)
		}
		return failed == nil
	})
	return deleted, errors.Join(err, failed)
}

// otherEntry returns the entry of a flow's other direction; nil if it is lost, if another flow has its port
// now, or if the flow has only one entry.
func otherEntry(table Table, key Tuple, e *Entry) (*Entry, error) {
	if e.IsOneSided() {
		return nil, nil
	}
	other, err := table.Get(e.Xlate.Reverse())
	if err != nil || other == nil || other.Xlate.Reverse() != key {
		return nil, err
	}
	return other, nil
}

// deleteFlow counts a flow once, though a walk may find both of its entries. Programs run meanwhile: the
// key or the SNAT port may belong to another flow now, or the flow may have had another packet.
func deleteFlow(table Table, key Tuple, e *Entry, over func(Tuple, *Entry) bool, count *uint64) error {
	was := *e
	deleted, err := table.DeleteIf(key, func(now *Entry) bool { return now.Xlate == was.Xlate && over(key, now) })
	if err != nil || !deleted {
		return err
	}
	*count++
	if was.IsOneSided() {
		return nil
	}
	_, err = table.DeleteIf(was.Xlate.Reverse(), func(other *Entry) bool { return other.Xlate.Reverse() == key })
	return err
}

// Deleted are the numbers of deleted flows by their family.
type Deleted map[service.Family]uint64

// Total returns the sum.
func (d Deleted) Total() uint64 { return d[service.IPv4] + d[service.IPv6] }

// DeleteStaleUDP deletes the UDP flows whose backend does not serve their service (R29). wait returns when
// all programs have ended that may still select such a backend, or move a flow from one table to the other.
func DeleteStaleUDP(tables *Tables, serves func(bpf.Connection) bool, wait func() error) (Deleted, error) {
	deleted := Deleted{}
	gone := func(key Tuple) { deleted[service.FamilyOf(key.From().Addr())]++ }
	_, err := deleteFromAll(tables, gone, func(key Tuple, e *Entry) bool {
		return key.Protocol == unix.IPPROTO_UDP && !serves(e.Connection(key))
	}, wait)
	return deleted, err
}

// DeleteFlows deletes the flows that over returns true for one entry of, and returns their number. wait returns when
// all programs have ended that may still create such a flow, or move it from one table to the other.
func DeleteFlows(tables *Tables, over func(Tuple, *Entry) bool, wait func() error) (uint64, error) {
	return deleteFromAll(tables, nil, over, wait)
}

func deleteFromAll(tables *Tables, gone func(Tuple), over func(Tuple, *Entry) bool, wait func() error) (deleted uint64, err error) {
	for _, table := range tables.All() {
		if err := wait(); err != nil {
			return deleted, err
		}
		n, err := deleteFlows(table, nil, gone, over)
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
