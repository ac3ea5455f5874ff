// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// EntryClass is what the entries of a Census are counted by.
type EntryClass struct {
	Assured  bool // in Tables.Assured
	Protocol service.Protocol
	State    State
}

// Census counts the entries that a GC pass found, including those that it deleted.
type Census struct {
	Entries map[EntryClass]int
	// Spare are the entries in Tables.Assured that give way to any new flow, and whose loss is of no consequence.
	Spare int
	// SNATFlows are the flows with a SNAT port.
	SNATFlows map[service.Protocol]int
	// SNATPorts is the number of such flows of one protocol to the port of the backend that has most, without those
	// that are closed: their ports are taken for new flows.
	SNATPorts int
}

// censusTaker counts entries in a walk of up to millions: it uses no maps meanwhile.
type censusTaker struct {
	entries [2][256][bpf.ConntrackClosed + 1]int
	// remote has the flows with SNAT ports by their backend's ID, those of UDP apart.
	remote [2][]int32
	snat   [256]int
	spare  int
}

// note counts an entry.
func (c *censusTaker) note(assured bool, key Tuple, e *Entry) {
	table := 0
	if assured {
		table = 1
	}
	if int(e.State) < len(c.entries[0][0]) {
		c.entries[table][key.Protocol][e.State]++
	}
	if assured && isSpare(e) {
		c.spare++
	}
	// The reply's entry is the one that holds the port.
	if !e.IsReply() || e.IsLocal() || e.IsOneSided() {
		return
	}
	c.snat[key.Protocol]++
	if State(e.State) == bpf.ConntrackClosed {
		return
	}
	other := 0
	if key.Protocol == unix.IPPROTO_UDP {
		other = 1
	}
	for int(e.Lb.Backend) >= len(c.remote[other]) && e.Lb.Backend < maxBackendID {
		c.remote[other] = append(c.remote[other], 0)
	}
	if int(e.Lb.Backend) < len(c.remote[other]) {
		c.remote[other][e.Lb.Backend]++
	}
}

// maxBackendID bounds the memory of a pass if an entry is damaged.
const maxBackendID = 1 << 20

// result returns the counts.
func (c *censusTaker) result() Census {
	all := Census{Spare: c.spare, Entries: map[EntryClass]int{}, SNATFlows: map[service.Protocol]int{}}
	for table := range c.entries {
		for protocol := range c.entries[table] {
			for state, n := range c.entries[table][protocol] {
				if n > 0 {
					all.Entries[EntryClass{table == 1, service.Protocol(protocol), State(state)}] = n
				}
			}
		}
	}
	for protocol, n := range c.snat {
		if n > 0 {
			all.SNATFlows[service.Protocol(protocol)] = n
		}
	}
	for _, flows := range c.remote {
		for _, n := range flows {
			all.SNATPorts = max(all.SNATPorts, int(n))
		}
	}
	return all
}

// isSpare reports whether an entry is of a closed connection, or of one by DSR whose client has sent a FIN: nearly all
// of these are closed, too.
func isSpare(e *Entry) bool {
	return State(e.State) == bpf.ConntrackClosed || State(e.State) == bpf.ConntrackClosing && e.IsOneSided()
}

// Status returns the fill of the tables at the last pass, without a walk.
func (p *Passes) Status() Status {
	s := Status{Limit: p.Assured, HalfOpenLimit: p.Unreplied, Evictable: p.Census.Spare}
	for class, n := range p.Census.Entries {
		if class.Assured {
			s.Entries += n
		} else {
			s.HalfOpen += n
		}
	}
	return s
}

// Passes are the results of GC passes.
type Passes struct {
	Last    time.Time // when the last one began; zero: there was none
	Took    time.Duration
	Expired uint64 // flows, since the agent started
	Census  Census // of the last complete one
	// Limits are the maximum numbers of entries.
	Assured, Unreplied uint32
}

// Passes returns the results of GC passes. It reads no table.
func (c *Collector) Passes() Passes {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.passes
	p.Assured, p.Unreplied = c.tables.Assured.Max(), c.tables.Unreplied.Max()
	return p
}
