// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netfilter"
	"beeline.io/beeline/internal/util/wakeup"
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
	marks, err := node.RuleMarks()
	if err != nil {
		return nil, err
	}
	for _, m := range marks {
		readers = append(readers, markReader{fmt.Sprintf("the routing rule with fwmark %#x/%#x", m.Mark, m.Mask), m.Mask})
	}
	policies, err := node.XFRMPolicies()
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
	at, err := f.tc.At(uplinks)
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

// watchRoutingRules waits for changes of routing rules, which may read marks.
func (s *Shortcut) watchRoutingRules(ctx context.Context) error {
	return watch(ctx, s.filtersChanged, func(ctx context.Context, changed wakeup.Signal) error {
		return netdev.Watch(ctx, changed, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	})
}
