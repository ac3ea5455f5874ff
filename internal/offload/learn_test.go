// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"strings"
	"testing"

	"beeline.io/beeline/internal/kernelct"
	"beeline.io/beeline/internal/netns"
)

// A flow is stored only as it was seen since the last change of the node: a candidate from before may have the next hop
// of a route that is gone. The kernel's conntrack does not know the flows of this test, so what is to be stored fails.
func TestCandidatesOfAnotherEpoch(t *testing.T) {
	const now, before = 7, 6
	for _, c := range []struct {
		name      string
		has       *Entry // of the same packets
		candidate uint32 // its epoch
		moved     bool   // it has another destination
		stays     bool   // the entry is kept
		stored    bool   // the candidate is to be stored
	}{
		{"a new flow", nil, now, false, false, true},
		{"a new flow, seen before the change", nil, before, false, false, false},
		{"a flow that is in the cache", &Entry{Epoch: now}, now, false, true, false},
		{"one with another destination by now", &Entry{Epoch: now}, now, true, false, true},
		{"one that is in the cache from before the change", &Entry{Epoch: before}, now, false, false, true},
		{"both from before the change", &Entry{Epoch: before}, before, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &Flows{cache: smallCache(t), ended: map[string]uint64{}, kernel: emptyConntrack(t), refused: refusals{}}
			f.cache.control().Epoch = now
			e := entry(1, 0)
			e.Key.Tuple.Protocol, e.Epoch = 6, c.candidate
			if c.has != nil {
				old := *e
				old.Epoch = c.has.Epoch
				if err := f.cache.add(&old); err != nil {
					t.Fatal(err)
				}
			}
			if c.moved {
				e.To.DestinationPort++
			}
			why := f.take(e)
			if stored := strings.Contains(why, "conntrack"); stored != c.stored || !stored && why != "" {
				t.Errorf("refused because of %q; it was to be stored: %v", why, c.stored)
			}
			if stays := f.cache.get(e.Key) != nil; stays != c.stays {
				t.Errorf("the entry is in the cache: %v, want %v", stays, c.stays)
			}
		})
	}
}

// emptyConntrack opens the conntrack of a network namespace without flows.
func emptyConntrack(t *testing.T) (table *kernelct.Table) {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Do(func() (err error) { table, err = kernelct.Open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}
