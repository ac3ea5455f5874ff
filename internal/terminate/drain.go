// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"maps"
	"time"

	"beeline.io/beeline/internal/datapath"
)

// A drain knows since when the backends of TCP connections have not served.
type drain struct {
	timeout time.Duration
	since   map[datapath.Connection]time.Time
	met     map[datapath.Connection]time.Time // when a sweep found it last
	// serves says whether a backend serves a service by now.
	serves func(datapath.Connection) bool
}

// found notes what a sweep found at a time, and says whether its connections
// have had their time.
func (d *drain) found(c datapath.Connection, now time.Time) (over bool) {
	d.met[c] = now
	since, known := d.since[c]
	if !known {
		if !d.serves(c) { // may have come back since it was found
			d.since[c] = now
		}
		return false
	}
	return !now.Before(since.Add(d.timeout))
}

// unmet is how long a backend is remembered that sweeps do not find, while there
// are namespaces into which they cannot look.
const unmet = 10 * time.Minute

// keep forgets all but those that a sweep has left, or, if it could not look
// everywhere, those that have not been found for long.
func (d *drain) keep(left map[datapath.Connection]bool, everywhere bool, now time.Time) {
	maps.DeleteFunc(d.since, func(c datapath.Connection, _ time.Time) bool {
		return !left[c] && (everywhere || now.Sub(d.met[c]) > unmet)
	})
	maps.DeleteFunc(d.met, func(c datapath.Connection, _ time.Time) bool { return d.since[c].IsZero() })
}

// returned forgets backends that serve again: their time begins anew when they
// cease to.
func (d *drain) returned() {
	maps.DeleteFunc(d.since, func(c datapath.Connection, _ time.Time) bool { return d.serves(c) })
}

// next is when the time of a backend is over that is not over yet at a time;
// zero if there is none.
func (d *drain) next(now time.Time) (at time.Time) {
	for _, since := range d.since {
		end := since.Add(d.timeout)
		if end.After(now) && (at.IsZero() || end.Before(at)) {
			at = end
		}
	}
	return at
}
