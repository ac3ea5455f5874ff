// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/shortcut/edge"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/internal/shortcut/offload"
	"beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/internal/shortcut/socket"
	"beeline.io/beeline/internal/shortcut/socketstats"
)

// Components returns the product's components: its parts with programs, tables and flags. A component may use the
// tables of those before it.
func Components() component.List {
	return component.List{
		socket.New(),
		edge.New(),
		socketstats.New(),
		pod.New(),
		pod.NewNetkit(),
		pod.NewL3(),
		offload.New(),
		mesh.New(),
	}
}

// parts returns the agent's own parts, which have neither programs nor flags.
func (a *Agent) parts() component.List {
	return component.List{
		{Name: "listeners", New: a.newListeners},
		{Name: "health", New: a.newHealth},
		{Name: "self-probe", New: a.newProbe},
		{Name: "objects", New: a.newObjects},
		{Name: "Events", New: a.newEvents},
	}
}

// Cleanup removes everything that an agent with these components created: programs, tables, pins, mounts and
// the socket of a killed agent. The notes are for who cleans up.
//
// Errors: *pinfs.LockedError while an agent is running.
func Cleanup(bpffs, socket string, components component.List) (notes []string, err error) {
	notes, err = removePins(bpffs, components)
	var locked *pinfs.LockedError
	if errors.As(err, &locked) {
		return nil, err
	}
	err = errors.Join(err, components.Cleanup())
	RemoveSocket(socket)
	return notes, err
}

// removePins removes what the components have pinned.
func removePins(bpffs string, components component.List) (notes []string, err error) {
	var failed error
	err = bpf.Cleanup(bpffs, func() { notes, failed = components.Detached(bpffs) }, components.BPF()...)
	return notes, errors.Join(err, failed)
}
