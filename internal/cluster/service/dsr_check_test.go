// SPDX-License-Identifier: Apache-2.0

package service

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// checkedVia returns how the endpoints of all Services are checked, by target; empty for plain routing.
func checkedVia(t *Cluster) map[string]string {
	all := map[string]string{}
	for target := range t.Targets() {
		text := target.Via.String()
		if text != "" && target.Via.To != target.Addr.Addr() {
			text += " at " + target.Via.To.String()
		}
		if text != "" && target.Via.Backend != target.Addr {
			text += " for " + target.Via.Backend.String()
		}
		all[target.Addr.String()] = text
	}
	return all
}

// X2, H3: endpoints on other machines are checked through the frontend that clients outside the cluster use, if
// the Service has DSR over TCP and the backend's machine accepts this node as a client.
func TestChecksGoByDSR(t *testing.T) {
	const onNode, elsewhere = "10.1.0.1:8080", "10.1.0.2:8080"
	plain := map[string]string{onNode: "", elsewhere: ""}
	through := func(how string) map[string]string { return map[string]string{onNode: "", elsewhere: how} }
	off := func(c *Config) { c.Edge = false }
	refuse := func(c *Config) { c.RefuseOutsideClusterIP = true }
	otherPort := note(AnnotationHealthCheckPort, "9000")
	for _, test := range []struct {
		name    string
		dsr     DSR
		config  func(*Config)
		options []serviceOption
		want    map[string]string
	}{
		{"no DSR", DSROff, nil, nil, plain},
		{"the ClusterIP where there is no other address", DSRIPIP, nil, nil, through("through IPIP to " + webHTTP)},
		{"clients outside are refused there", DSRIPIP, refuse, nil, plain},
		{"the external IP before that", DSRIPIP, refuse, []serviceOption{externalIPs("203.0.113.9")}, through("through IPIP to 203.0.113.9:80")},
		{"the load balancer's address first", DSRIPIP, nil, []serviceOption{externalIPs("203.0.113.9"), loadBalancer(vip)}, through("through IPIP to " + vip + ":80")},
		{"source ranges that admit this node", DSRIPIP, nil, []serviceOption{loadBalancer(vip), sources(hereIP + "/32")}, through("through IPIP to " + vip + ":80")},
		{"source ranges that do not", DSRIPIP, nil, []serviceOption{loadBalancer(vip), sources("198.51.100.0/24")}, plain},
		{"to the endpoint's node", DSRGeneve, nil, nil, through("through Geneve to " + webHTTP + " at " + thereIP)},
		{"a Node sends no options", DSROpt, nil, nil, plain},
		{"this node has no edge", DSRIPIP, off, nil, plain},
		{"another port", DSRIPIP, nil, []serviceOption{otherPort}, map[string]string{
			"10.1.0.1:9000": "", "10.1.0.2:9000": "through IPIP to " + webHTTP + " for " + elsewhere,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := testConfig()
			config.DSR, config.Edge = test.dsr, true
			if test.config != nil {
				test.config(&config)
			}
			options := append([]serviceOption{note(AnnotationHealthCheck, "tcp")}, test.options...)
			there := &Node{Name: "there", Addresses: addrs(thereIP)}
			table := cluster(config, there, service("web", options...), slice("web-1", []string{"a here", "b there"}))
			if got := checkedVia(table); !maps.Equal(got, test.want) {
				t.Errorf("checks use\n%v, want\n%v", got, test.want)
			}
		})
	}
}

// A check on another port of UDP endpoints uses plain routing: nothing answers TCP at the frontend.
func TestChecksOfUDPAreDirect(t *testing.T) {
	config := testConfig()
	config.DSR, config.Edge = DSRIPIP, true
	port := note(AnnotationHealthCheckPort, "9000")
	table := cluster(config, service("web", protocol(corev1.ProtocolUDP), note(AnnotationHealthCheck, "tcp"), port), slice("web-1", []string{"b there"}, udp))
	if got, want := checkedVia(table), map[string]string{"10.1.0.2:9000": ""}; !maps.Equal(got, want) {
		t.Errorf("checks use %v, want %v", got, want)
	}
}

// With an IP option, checks depend on whether this node is a Node; a standalone balancer is not. An endpoint
// without a node name is on this node if it has one of its addresses.
func TestChecksOfStandAloneBalancer(t *testing.T) {
	config := testConfig()
	config.DSR, config.Edge, config.LocalByAddress = DSROpt, true, true
	table := NewCluster(config)
	unnamed := func(s *discoveryv1.EndpointSlice) {
		for i := range s.Endpoints {
			s.Endpoints[i].NodeName = nil
		}
	}
	table.SetLocalAddresses(addrs(address("a", false)))
	table.Apply(changes(service("web", note(AnnotationHealthCheck, "tcp")), slice("web-1", []string{"a", "b"}, unnamed)))
	want := map[string]string{"10.1.0.1:8080": "", "10.1.0.2:8080": "through an IP option to " + webHTTP}
	if got := checkedVia(table); !maps.Equal(got, want) {
		t.Errorf("checks use %v, want %v", got, want)
	}
	own := &Node{Name: config.NodeName, Addresses: addrs(hereIP)}
	if delta := table.Apply(changes(own)); !delta.Targets || checkedVia(table)["10.1.0.2:8080"] != "" {
		t.Errorf("a Node checks %v", checkedVia(table))
	}
	if delta := table.Apply([]Change{{Ref: own.Ref(), Object: &Node{Name: config.NodeName}}}); !delta.Targets || !maps.Equal(checkedVia(table), want) {
		t.Errorf("the Node has no address any more, and checks use %v", checkedVia(table))
	}
}
