// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/web"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A balancerRig is three clusters with the same web servers, in the pods b1 and b2. The first has no agent, and
// the user-space balancers run on node-a; in the others agents serve both nodes, by XDP and by tc.
type balancerRig struct {
	bare, xdp, tc *harness.World
	web           []*web.Nginx // and the balancer
	sockmap       *sockmapBalancer
}

// Ports of the balancers on node-a, and the addresses of Beeline's Services.
const (
	httpPort, streamPort, sockmapPort = 8001, 8002, 8003
)

func newRig(ctx context.Context, b *harness.Bench) (rig *balancerRig, err error) {
	rig = &balancerRig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, rig.end())
		}
	}()
	for _, w := range []**harness.World{&rig.bare, &rig.xdp, &rig.tc} {
		if *w, err = harness.NewWorld(); err != nil {
			return rig, err
		}
		if err := rig.addWeb(ctx, *w); err != nil {
			return rig, err
		}
	}
	backends := webServers(rig.bare)
	balancer := rig.bare.Host("node-a")
	proxy, err := web.StartProxy(ctx, balancer, httpPort, streamPort, backends)
	if err != nil {
		return rig, err
	}
	rig.web = append(rig.web, proxy)
	if rig.sockmap, err = startSockmap(balancer, sockmapPort, backends...); err != nil {
		return rig, fmt.Errorf("balancer by sockmap: %w", err)
	}
	return rig, errors.Join(rig.addBeeline(b, rig.xdp, "xdp"), rig.addBeeline(b, rig.tc, "tc"))
}

func (rig *balancerRig) end() error {
	var errs []error
	if rig.sockmap != nil {
		errs = append(errs, rig.sockmap.close())
	}
	for _, n := range rig.web {
		n.Stop()
	}
	for _, w := range []*harness.World{rig.bare, rig.xdp, rig.tc} {
		if w != nil {
			errs = append(errs, w.End())
		}
	}
	return errors.Join(errs...)
}

var webPods = []string{"b1", "b2"}

func webServers(w *harness.World) (all []netip.AddrPort) {
	for _, pod := range webPods {
		all = append(all, netip.AddrPortFrom(w.Host(pod).Addr4, harness.ServerPort))
	}
	return all
}

// addWeb starts the web servers. All clusters have the fabric that native XDP needs: with packets as on a wire.
func (rig *balancerRig) addWeb(ctx context.Context, w *harness.World) error {
	if err := w.ReadyForXDP(); err != nil {
		return err
	}
	for _, pod := range webPods {
		server, err := web.StartWeb(ctx, w.Host(pod))
		if err != nil {
			return err
		}
		rig.web = append(rig.web, server)
	}
	return nil
}

// addBeeline adds the Services, their route, and the agents.
func (rig *balancerRig) addBeeline(b *harness.Bench, w *harness.World, mode string) error {
	err := errors.Join(addPublished(w, "snat", 1, harness.AddressSNAT, "off"), addPublished(w, "dsr", 2, harness.AddressDSR, "ipip"))
	if err != nil {
		return err
	}
	if err := harness.RouteTo(w.Host("fabric"), "node-a", harness.BalancedRange, w.Host("node-a").Addr4); err != nil {
		return err
	}
	for _, host := range []string{"node-a", "node-b"} {
		if _, err := w.StartAgent(b.Program, host, mode); err != nil {
			return err
		}
	}
	return nil
}

// addPublished writes a Service of the web servers with an address for external clients.
func addPublished(w *harness.World, name string, number uint8, at netip.Addr, dsr string) error {
	var pods []*lab.Host
	for _, pod := range webPods {
		pods = append(pods, w.Host(pod))
	}
	s, slices := node.Service(name, number), node.Slices(name, pods...)
	node.SetPorts(s, slices, node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: harness.ServicePort, Target: harness.ServerPort})
	s.Annotations = map[string]string{service.AnnotationDSR: dsr}
	s.Spec.ExternalIPs = []string{at.String()}
	return node.WriteManifest(w.Folder, name+".yaml", harness.Objects(s, slices)...)
}

// ways are the rows of the part: all others are compared with the first.
func (rig *balancerRig) ways() []*way {
	web := webServers(rig.bare)
	onNode := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(rig.bare.Host("node-a").Addr4, port) }
	service := func(at netip.Addr) netip.AddrPort { return netip.AddrPortFrom(at, harness.ServicePort) }
	client, balancer := rig.bare.Host("client").Addr4, rig.bare.Host("node-a").Addr4
	return []*way{
		{name: wayOfDirect, world: rig.bare, to: web[0], pods: webPods[:1], sees: client, passes: passesNothing},
		{name: "direct, the other (A/A)", world: rig.bare, to: web[1], pods: webPods[1:], sees: client, passes: passesNothing},
		{name: "nginx, HTTP proxy", world: rig.bare, to: onNode(httpPort), pods: webPods, sees: balancer, passes: passesAll},
		{name: "nginx, stream", world: rig.bare, to: onNode(streamPort), pods: webPods, sees: balancer, passes: passesAll},
		{name: wayOfSockmap, world: rig.bare, to: onNode(sockmapPort), pods: webPods, sees: balancer, passes: passesAll, sockmap: rig.sockmap},
		{name: "Beeline, tc, SNAT", world: rig.tc, to: service(harness.AddressSNAT), pods: webPods, sees: balancer, passes: passesAll, hook: bpf.EdgeIngress},
		{name: "Beeline, XDP, SNAT", world: rig.xdp, to: service(harness.AddressSNAT), pods: webPods, sees: balancer, passes: passesAll, hook: bpf.EdgeXDP},
		{name: "Beeline, XDP, DSR (IPIP)", world: rig.xdp, to: service(harness.AddressDSR), pods: webPods, sees: client, passes: passesRequests, hook: bpf.EdgeXDP},
	}
}
