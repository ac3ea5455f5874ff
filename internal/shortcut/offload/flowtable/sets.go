// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables"
)

// batchElements is how many elements a message has: an attribute has at most 64 KiB.
const batchElements = 500

func (w *writer) set(name string, kind nftables.SetDatatype, elements []nftables.SetElement) *nftables.Set {
	return w.addSet(&nftables.Set{Name: name, KeyType: kind}, elements)
}

// intervals is a set of ranges.
func (w *writer) intervals(name string, kind nftables.SetDatatype, all []span) *nftables.Set {
	var elements []nftables.SetElement
	for _, s := range all {
		elements = append(elements, nftables.SetElement{Key: s.first})
		if end := after(s.last); end != nil {
			elements = append(elements, nftables.SetElement{Key: end, IntervalEnd: true})
		}
	}
	return w.addSet(&nftables.Set{Name: name, KeyType: kind, Interval: true}, elements)
}

// timeoutSet is a set whose elements expire after a time, if one is given; packets may add them.
func (w *writer) timeoutSet(name string, kind nftables.SetDatatype, timeout time.Duration, dynamic bool) *nftables.Set {
	return w.addSet(&nftables.Set{
		Name: name, KeyType: kind, HasTimeout: timeout > 0, Timeout: timeout, Dynamic: dynamic, Size: dynamicSize,
	}, nil)
}

func (w *writer) addSet(s *nftables.Set, elements []nftables.SetElement) *nftables.Set {
	s.Table = w.table
	if err := w.AddSet(s, nil); err != nil && w.err == nil {
		w.err = err
	}
	if err := addElements(w.Conn, s, elements); err != nil && w.err == nil {
		w.err = err
	}
	return s
}

func addElements(c *nftables.Conn, s *nftables.Set, elements []nftables.SetElement) error {
	for len(elements) > 0 {
		n := min(batchElements, len(elements))
		if err := c.SetAddElements(s, elements[:n]); err != nil {
			return err
		}
		elements = elements[n:]
	}
	return nil
}

func indexElements(indexes []int) (all []nftables.SetElement) {
	for _, i := range indexes {
		all = append(all, nftables.SetElement{Key: binary.NativeEndian.AppendUint32(nil, uint32(i))})
	}
	return all
}
