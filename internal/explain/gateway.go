// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/gateway"
	"beeline.io/beeline/internal/gateway/flow"
	"beeline.io/beeline/internal/service"
)

// Gateway is what the gateway does with a packet that is for no Service.
type Gateway struct {
	Path gateway.FlowPath `json:"path"` // cache or slow
	// In and Out are the devices, Rewritten the addresses and ports that leave the node, of PathCache.
	In        string `json:"in,omitempty"`
	Out       string `json:"out,omitempty"`
	Rewritten *Ends  `json:"rewritten,omitempty"`
}

func (g *Gateway) String() string {
	if g.Path != gateway.PathCache {
		return "not in the flow cache: the packet takes the stack (`beeline gateway flows` says why, if the flow was refused)"
	}
	return fmt.Sprintf("in the flow cache: from %s to %s as %s", g.In, g.Out, g.Rewritten)
}

// gateway looks for the packet's flow in the flow cache. It reports whether there is one, with the flow or without.
func (x *explainer) gateway() (exists bool, err error) {
	tables, err := datapath.OpenGatewayTables(x.bpffs)
	if err != nil || tables == nil {
		return false, err
	}
	defer tables.Close()
	asks := x.answer.Original
	x.answer.Gateway = &Gateway{Path: gateway.PathSlow}
	for _, f := range gateway.Find(tables, flow.Tuple{Source: asks.Source, Destination: asks.Destination, Protocol: uint8(asks.Protocol)}) {
		in, out := deviceName(uint32(f.InDevice)), deviceName(uint32(f.OutDevice))
		if x.question.Device != "" && x.question.Device != in {
			continue
		}
		x.answer.Gateway = &Gateway{Path: gateway.PathCache, In: in, Out: out, Rewritten: &Ends{f.Out.Source, f.Out.Destination, service.Protocol(f.Out.Protocol)}}
	}
	return true, nil
}
