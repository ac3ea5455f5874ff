// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"errors"
	"slices"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/assess"
)

// countsOf counts the objects in the tables.
func countsOf(t *api.Tables) api.Counts {
	c := api.Counts{Services: len(t.Services), Backends: len(t.Backends)}
	for i := range t.Services {
		c.Frontends += len(t.Services[i].Frontends)
		if t.Services[i].Algorithm == service.Maglev {
			c.MaglevServices++
		}
		if slices.ContainsFunc(t.Services[i].Frontends, func(f api.Frontend) bool { return f.DSR != "" }) {
			c.DSRServices++
		}
	}
	return c
}

// A PinReader adds to a status what the pins of components say (component.List.ReadPins).
type PinReader func(bpffs string, s *api.Status, count bool) error

// ReadStatus reads the status from the pins of a bpffs directory. Only a running agent knows the rest, and calls
// assess.Status again. Conntrack entries are counted only if count is set.
func ReadStatus(bpffs, version string, tables *api.Tables, components PinReader, count bool) *api.Status {
	s := &api.Status{Version: version, BPFFS: bpffs, Features: bpf.Features(), Counts: countsOf(tables)}
	s.Running, s.PID = bpf.AgentRunning(bpffs)
	var attachments, counters error
	s.Attachments, attachments = bpf.Attachments(bpffs, bpf.Socket(), bpf.SocketStats(nil))
	s.SocketCounters, counters = bpf.ReadCounters(bpffs)
	componentErr := components(bpffs, s, count)
	var drainErr, namespaceErr error
	s.Drain, drainErr = readDrain(bpffs)
	s.OtherNetworkNamespace, namespaceErr = bpf.OtherNamespace(bpffs)
	if err := errors.Join(attachments, counters, componentErr, drainErr, namespaceErr); err != nil {
		s.UnreadablePins = err.Error()
	}
	assess.Status(s)
	return s
}
