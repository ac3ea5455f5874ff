// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"maps"
	"time"

	"beeline.io/beeline/internal/bpf"
)

// removedBackend is a backend that was removed from service.
type removedBackend struct {
	since time.Time // when a GC pass first found it
	seen  time.Time // when a GC pass last found it
}

// A drain records since when the backends of TCP connections have been out of service.
type drain struct {
	timeout time.Duration
	removed map[bpf.Connection]removedBackend
	// serves reports whether a backend serves a service again.
	serves func(bpf.Connection) bool
}

// found records a connection that a GC pass found, and reports whether its drain timeout has passed.
func (d *drain) found(c bpf.Connection, now time.Time) (over bool) {
	g, known := d.removed[c]
	if !known {
		if d.serves(c) { // restored since the GC pass found it
			return false
		}
		g.since = now
	}
	g.seen = now
	d.removed[c] = g
	return known && !now.Before(g.since.Add(d.timeout))
}

// forgetAfter is how long a backend that GC passes do not find is kept while they cannot enter some namespaces.
const forgetAfter = 10 * time.Minute

// keep removes all backends except those that a GC pass left or, if it could not enter every namespace, those
// found within forgetAfter.
func (d *drain) keep(left map[bpf.Connection]bool, everywhere bool, now time.Time) {
	maps.DeleteFunc(d.removed, func(c bpf.Connection, g removedBackend) bool {
		return !left[c] && (everywhere || now.Sub(g.seen) > forgetAfter)
	})
}

// returned removes backends that serve again. Their drain timeout restarts if they are removed again.
func (d *drain) returned() {
	maps.DeleteFunc(d.removed, func(c bpf.Connection, _ removedBackend) bool { return d.serves(c) })
}

// next returns when the next drain timeout after now passes; the zero time if none does.
func (d *drain) next(now time.Time) (at time.Time) {
	for _, g := range d.removed {
		end := g.since.Add(d.timeout)
		if end.After(now) && (at.IsZero() || end.Before(at)) {
			at = end
		}
	}
	return at
}
