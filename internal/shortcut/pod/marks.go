// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"

	"beeline.io/beeline/internal/node/netfilter"
)

// A markReader is what reads the marks of packets, other than rules of netfilter.
type markReader struct {
	what string
	mask uint32 // of the bits that it reads
}

// onlyMarked replaces rules that only mark packets by those whose marks somebody reads.
func (f *finder) onlyMarked(s surroundings, found []netfilter.Finding) (filters []netfilter.Finding, err error) {
	var readers []markReader
	for _, one := range found {
		if one.Marks == 0 {
			filters = append(filters, one)
			continue
		}
		if readers == nil {
			if readers, err = f.markReaders(s); err != nil {
				return nil, err
			}
		}
		for _, r := range readers {
			if one.Marks&r.mask != 0 {
				one.What += ", which is read by " + r.what
				filters = append(filters, one)
				break
			}
		}
	}
	return filters, nil
}

// markReaders returns the readers, which may be none.
func (f *finder) markReaders(s surroundings) ([]markReader, error) {
	readers := []markReader{}
	rules, err := f.network.Rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if r.MarkMask != 0 {
			readers = append(readers, markReader{fmt.Sprintf("the routing rule with fwmark %#x/%#x", r.Mark, r.MarkMask), r.MarkMask})
		}
	}
	policies, err := f.network.XFRMPolicies()
	if err != nil {
		return nil, err
	}
	for _, p := range policies {
		if p.MarkMask != 0 {
			readers = append(readers, markReader{p.String(), p.MarkMask})
		}
	}
	uplinks := map[int]string{}
	for _, l := range s.uplinks {
		uplinks[l.Index] = l.Name
	}
	queues, err := f.network.Queues()
	if err != nil {
		return nil, err
	}
	at, err := f.tc.At(uplinks, queues)
	if err != nil {
		return nil, err
	}
	for _, found := range at {
		for _, what := range found.Egress {
			readers = append(readers, markReader{what + " of " + uplinks[found.Device], ^uint32(0)})
		}
	}
	return readers, nil
}
