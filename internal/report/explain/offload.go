// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/shortcut/offload"
)

// Offload is what flow offload does with a packet that is for no Service.
type Offload struct {
	Path offload.FlowPath `json:"path"` // cache, flowtable, hardware or slow
	// InDevice and OutDevice are set with PathCache. Rewritten are the addresses and ports that leave the node.
	InDevice  string `json:"inDevice,omitempty"`
	OutDevice string `json:"outDevice,omitempty"`
	Rewritten *Ends  `json:"rewritten,omitempty"`
}

func (g *Offload) String() string {
	switch g.Path {
	case offload.PathFlowtable, offload.PathHardware:
		return fmt.Sprintf("in a flowtable of the kernel (%s): leaves as %s", g.Path, g.Rewritten)
	case offload.PathSlow:
		return "neither in the flow cache nor in a flowtable: the packet takes the stack (`beeline offload flows` says why, if the flow was refused)"
	}
	return fmt.Sprintf("in the flow cache: from %s to %s as %s", g.InDevice, g.OutDevice, g.Rewritten)
}

// offload looks for the packet's flow in the flow cache, and in the kernel's flowtables. It reports whether
// flow offload is on, with the flow or without.
func (x *explainer) offload() (exists bool, err error) {
	tables, err := offload.OpenTables(x.bpffs)
	if err != nil {
		return false, err
	}
	asks := flow.Tuple{Source: x.answer.Original.Source, Destination: x.answer.Original.Destination, Protocol: uint8(x.answer.Original.Protocol)}
	if tables != nil {
		defer tables.Close()
		x.answer.Offload = &Offload{Path: offload.PathSlow}
		x.inCache(tables, asks)
	}
	if x.answer.Offload == nil || x.answer.Offload.Path == offload.PathSlow {
		x.inFlowtable(asks)
	}
	return x.answer.Offload != nil, nil
}

func (x *explainer) inCache(tables *offload.Tables, asks flow.Tuple) {
	for _, f := range offload.Find(tables, asks) {
		in, out := deviceName(uint32(f.InDevice)), deviceName(uint32(f.OutDevice))
		if x.question.Device != "" && x.question.Device != in {
			continue
		}
		x.answer.Offload = &Offload{Path: offload.PathCache, InDevice: in, OutDevice: out, Rewritten: endsOf(f.Out)}
	}
}

// inFlowtable looks for the packet's flow in the kernel's flowtables, also those of others.
func (x *explainer) inFlowtable(asks flow.Tuple) {
	path, out, err := offload.Offloaded(asks)
	if err != nil {
		x.note("whether a flowtable of the kernel has the flow is not known: %s", err)
	}
	if path != "" {
		x.answer.Offload = &Offload{Path: path, Rewritten: endsOf(out)}
	}
}

func endsOf(t flow.Tuple) *Ends {
	return &Ends{t.Source, t.Destination, service.Protocol(t.Protocol)}
}
