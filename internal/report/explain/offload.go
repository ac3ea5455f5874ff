// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/flow"
)

// Offload is what flow offload does with a packet that is for no Service.
type Offload struct {
	Path api.FlowPath `json:"path"` // cache, flowtable, hardware or slow
	// InDevice and OutDevice are set with PathCache. Rewritten are the addresses and ports that leave the node.
	InDevice  string `json:"inDevice,omitempty"`
	OutDevice string `json:"outDevice,omitempty"`
	Rewritten *Ends  `json:"rewritten,omitempty"`
}

func (g *Offload) String() string {
	switch g.Path {
	case api.PathFlowtable, api.PathHardware:
		return fmt.Sprintf("in a flowtable of the kernel (%s): leaves as %s", g.Path, g.Rewritten)
	case api.PathSlow:
		return "neither in the flow cache nor in a flowtable: the packet takes the stack (`beeline offload flows` says why, if the flow was refused)"
	}
	return fmt.Sprintf("in the flow cache: from %s to %s as %s", g.InDevice, g.OutDevice, g.Rewritten)
}

// OffloadReader returns what flow offload does with a packet that arrives by a device, or by any if that is empty; nil
// if it is off. The note says what is not known.
type OffloadReader func(bpffs string, packet flow.Tuple, device string) (found *Offload, note string, err error)

// offload adds what flow offload does with the packet. It reports whether flow offload is on, with the flow or without.
func (x *explainer) offload() (exists bool, err error) {
	original := x.answer.Original
	packet := flow.Tuple{Source: original.Source, Destination: original.Destination, Protocol: uint8(original.Protocol)}
	found, note, err := x.readOffload(x.bpffs, packet, x.question.Device)
	if note != "" {
		x.note("%s", note)
	}
	x.answer.Offload = found
	return found != nil, err
}

// EndsOf returns a tuple as it is shown.
func EndsOf(t flow.Tuple) *Ends { return &Ends{t.Source, t.Destination, service.Protocol(t.Protocol)} }
