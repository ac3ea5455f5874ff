// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// lookAfterSockets has the sockets ended whose backend the last change of the
// tables took out of service.
func (a *Agent) lookAfterSockets() {
	if a.synced {
		a.changed(a.syncer.Left())
	}
}

// changed has connections and flows ended of which the backend may have left.
func (a *Agent) changed(udp, tcp bool) {
	a.sockets.Changed(udp, tcp)
	a.edge.Changed(udp)
}

// serves says whether a connection's backend serves its service at present.
func (a *Agent) serves(c datapath.Connection) bool {
	return a.syncer.Serves(service.Protocol(c.Protocol), c.Service, c.Backend)
}
