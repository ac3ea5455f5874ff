// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/component/edge"
	"beeline.io/beeline/internal/component/mesh"
	"beeline.io/beeline/internal/component/offload"
	"beeline.io/beeline/internal/component/pod"
	"beeline.io/beeline/internal/component/socket"
	"beeline.io/beeline/internal/component/socketstats"
	"beeline.io/beeline/internal/datapath"
)

// Components returns the product's shortcuts. A component may use the tables of those before it.
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

// Cleanup removes everything that an agent with these components created: programs, tables, pins, mounts and
// the socket of a killed agent.
//
// Errors: *pinfs.LockedError while an agent is running.
func Cleanup(bpffs, socket string, components component.List) error {
	if err := datapath.Cleanup(bpffs, components.BPF()...); err != nil {
		return err
	}
	if err := components.Cleanup(); err != nil {
		return err
	}
	RemoveSocket(socket)
	return nil
}
