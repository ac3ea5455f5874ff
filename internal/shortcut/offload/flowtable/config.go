// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/shortcut/offload/policy"
)

// A Config says which flows leave the stack.
type Config struct {
	// Devices are the names of the devices between which flows are taken: physical devices, VLAN devices, bridges
	// and their ports, bonds, fixed tunnels.
	Devices []string
	// Hardware: have the NIC forward the flows, between the devices whose drivers can.
	Hardware bool
	// Threshold is the number of packets in each direction, on average, after which a flow is taken. nf_tables
	// counts both directions of a flow together.
	Threshold int
	policy.Policy
	// OnlyChosen: of these flows, take only those that Choose names.
	OnlyChosen bool
}

func (c Config) protocols() []uint8 {
	if len(c.Protocols) == 0 {
		return []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}
	}
	return c.Protocols
}

// Report says what Apply did.
type Report = api.FlowtableReport

// spans merges prefixes to sorted ranges of addresses that do not overlap.
func spans(networks []netip.Prefix, ipv6 bool) (all []span) {
	for _, n := range networks {
		if n = n.Masked(); n.Addr().Is6() == ipv6 {
			all = append(all, span{n.Addr().AsSlice(), netdev.LastAddress(n).AsSlice()})
		}
	}
	return merge(all)
}

func portSpans(ports []bpf.PortRange) (all []span) {
	for _, p := range ports {
		all = append(all, span{[]byte{byte(p.First >> 8), byte(p.First)}, []byte{byte(p.Last >> 8), byte(p.Last)}})
	}
	return merge(all)
}

// A span is a range of keys of one length in network byte order, with both ends.
type span struct{ first, last []byte }

// merge sorts spans, and merges those that overlap or touch: a set has each key once.
func merge(all []span) (merged []span) {
	slices.SortFunc(all, func(a, b span) int { return slices.Compare(a.first, b.first) })
	for _, s := range all {
		if n := len(merged); n > 0 && touches(merged[n-1].last, s.first) {
			if slices.Compare(s.last, merged[n-1].last) > 0 {
				merged[n-1].last = s.last
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// touches reports whether a span that begins with first continues the one that ends with last.
func touches(last, first []byte) bool {
	end := after(last)
	return end == nil || slices.Compare(first, end) <= 0
}

// after returns the key that follows one; nil if it is the last one.
func after(key []byte) []byte {
	next := slices.Clone(key)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] != 0 {
			return next
		}
	}
	return nil
}
