// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/node"
)

// socketObjects are so many Services, two of them used, and their endpoints. All clusters have the same.
func socketObjects(w *harness.World, services int) (all []runtime.Object) {
	for name, b := range backends {
		service, slices := node.Service(name, b.number), node.Slices(name, w.Host(b.server))
		node.SetPorts(service, slices,
			node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: harness.ServicePort, Target: harness.ServerPort},
			node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: harness.ServicePort, Target: harness.ServerPort})
		all = append(all, harness.Objects(service, slices)...)
	}
	for _, o := range harness.Fillers(services-len(backends), corev1.ProtocolTCP) {
		all = append(all, o.Service, o.Slice)
	}
	return all
}

// serviceOf is the ClusterIP of the Service with a server as its backend.
func serviceOf(server, family string) netip.AddrPort {
	var found netip.AddrPort
	for _, b := range backends {
		if b.server == server {
			found = netip.AddrPortFrom(harness.ClusterIP(b.number, family), harness.ServicePort)
		}
	}
	return found
}

// addProxied adds a cluster with kube-proxy and so many Services. It has ended before the measurement; its
// rules stay.
func (rig *socketRig) addProxied(ctx context.Context, b *harness.Bench, services int) error {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	rig.proxied[services] = w
	control, err := controlplane.Start(ctx, w.Lab, b.ControlPlane)
	if err != nil {
		return err
	}
	defer control.Stop()
	objects := append(node.Cluster(w.Lab), socketObjects(w, services)...)
	if err := control.Create(ctx, objects...); err != nil {
		return err
	}
	last := harness.Plus(harness.FirstService["IPv4"], services-len(backends)-1).String()
	for _, p := range []struct{ host, mode string }{{"node-a", controlplane.NFTables}, {"node-b", controlplane.IPTablesLegacy}} {
		proxy, err := control.StartProxy(w.Host(p.host), p.mode)
		if err != nil {
			return err
		}
		want := []string{last}
		for server := range map[string]bool{"a2": true, "b1": true} {
			for _, family := range harness.BothFamilies {
				want = append(want, serviceOf(server, family).Addr().String())
			}
			want = append(want, w.Host(server).Addr4.String(), w.Host(server).Addr6.String())
		}
		if err := proxy.AwaitRules(ctx, "serving all Services", want...); err != nil {
			return err
		}
		if err := proxy.Stop(); err != nil {
			return err
		}
	}
	if err := errors.Join(control.Stop(), rig.startServers(ctx, b, w), w.ProveHooks(0)); err != nil {
		return err
	}
	for client, server := range map[string]string{"a1": "b1", "b2": "a2"} {
		for _, family := range harness.BothFamilies {
			if err := proveTranslated(ctx, w, client, server, family); err != nil {
				return fmt.Errorf("from %s: %w", client, err)
			}
		}
	}
	return nil
}

// proveTranslated has a pod connect to a ClusterIP, and checks in its node's conntrack that the server's pod
// has replied. There is no route to ClusterIPs: an untranslated connection fails.
func proveTranslated(ctx context.Context, w *harness.World, client, server, family string) error {
	target, pod, kind := serviceOf(server, family), harness.AddressOf(w.Host(server), family), unix.AF_INET
	if pod.Is6() {
		kind = unix.AF_INET6
	}
	conn, err := w.Host(client).Dial(ctx, "tcp", target.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	from, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return err
	}
	return w.Host(client).Node.Do(func() error {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(kind))
		if err != nil {
			return fmt.Errorf("connection tracking: %w", err)
		}
		for _, f := range all {
			if f.Forward.SrcPort == from.Port() && f.Forward.DstIP.Equal(target.Addr().AsSlice()) && f.Reverse.SrcIP.Equal(pod.AsSlice()) {
				return nil
			}
		}
		return fmt.Errorf("conntrack has no flow of %s to %s with a reply from %s", from, target, pod)
	})
}
