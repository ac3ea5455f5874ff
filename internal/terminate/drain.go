// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"maps"
	"time"

	"beeline.io/beeline/internal/datapath"
)

// gone is a backend that serves no more.
type gone struct {
	since time.Time // when a sweep found it first
	met   time.Time // and last
}

// A drain knows since when the backends of TCP connections have not served.
type drain struct {
	timeout time.Duration
	gone    map[datapath.Connection]gone
	// serves says whether a backend serves a service by now.
	serves func(datapath.Connection) bool
}

// found notes what a sweep found at a time, and says whether its connections
// have had their time.
func (d *drain) found(c datapath.Connection, now time.Time) (over bool) {
	g, known := d.gone[c]
	if !known {
		if d.serves(c) { // it has come back since it was found
			return false
		}
		g.since = now
	}
	g.met = now
	d.gone[c] = g
	return known && !now.Before(g.since.Add(d.timeout))
}

// unmet is how long a backend is remembered that sweeps do not find, while there
// are namespaces into which they cannot look.
const unmet = 10 * time.Minute

// keep forgets all but those that a sweep has left, or, if it could not look
// everywhere, those that have not been found for long.
func (d *drain) keep(left map[datapath.Connection]bool, everywhere bool, now time.Time) {
	maps.DeleteFunc(d.gone, func(c datapath.Connection, g gone) bool {
		return !left[c] && (everywhere || now.Sub(g.met) > unmet)
	})
}

// returned forgets backends that serve again: their time begins anew when they
// cease to.
func (d *drain) returned() {
	maps.DeleteFunc(d.gone, func(c datapath.Connection, _ gone) bool { return d.serves(c) })
}

// next is when the time of a backend is over that is not over yet at a time;
// zero if there is none.
func (d *drain) next(now time.Time) (at time.Time) {
	for _, g := range d.gone {
		end := g.since.Add(d.timeout)
		if end.After(now) && (at.IsZero() || end.Before(at)) {
			at = end
		}
	}
	return at
}
