// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"maps"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// TestPolicyOfPod: exclusions win over inclusions, of the pod and of the agent.
func TestPolicyOfPod(t *testing.T) {
	d := Defaults{ProxyUID: 1337, ProxyGID: 1337, DNS: true, ExcludeOutboundPorts: []uint16{22}, ExcludeInboundPorts: []uint16{23}, ExcludeOutbound: prefixes("10.9.0.0/16")}
	user := uint32(1500)
	p := d.policyOf(&service.Sidecar{
		ProxyUID: &user, IncludeOutboundPorts: []uint16{22, 80, 443}, ExcludeOutboundPorts: []uint16{443},
		IncludeOutbound: service.Networks{List: prefixes("10.1.0.0/16", "10.9.1.0/24", "10.0.0.0/8")}, ExcludeOutbound: prefixes("10.1.0.0/16", "10.1.2.0/24"),
		IncludeInboundPorts: service.Ports{List: []uint16{8080, 9000}}, ExcludeInboundPorts: []uint16{9000}, ProbePorts: []uint16{8080, 8081, 9000},
	})
	if p.ProxyUID != 1500 || p.ProxyGID != 1337 || p.AllOutbound || p.AllInbound || p.DNS {
		t.Errorf("%+v", p)
	}
	if want := map[uint16]datapath.MeshRule{22: datapath.MeshExclude, 80: datapath.MeshInclude, 443: datapath.MeshExclude}; !maps.Equal(p.OutboundPorts, want) {
		t.Errorf("outbound ports %v, want %v", p.OutboundPorts, want)
	}
	if want := map[uint16]datapath.MeshRule{23: datapath.MeshExclude, 8080: datapath.MeshProbeIncluded, 8081: datapath.MeshProbe, 9000: datapath.MeshExclude}; !maps.Equal(p.InboundPorts, want) {
		t.Errorf("inbound ports %v, want %v", p.InboundPorts, want)
	}
	want := map[netip.Prefix]datapath.MeshRule{}
	setRules(want, prefixes("10.0.0.0/8"), datapath.MeshInclude)
	setRules(want, prefixes("10.1.0.0/16", "10.1.2.0/24", "10.9.0.0/16"), datapath.MeshExclude)
	if !maps.Equal(p.Networks, want) {
		t.Errorf("networks %v, want %v", p.Networks, want)
	}
}
