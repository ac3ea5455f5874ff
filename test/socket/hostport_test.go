// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/lab"
)

const hostPort = 9090

// podObject is the Pod object of a pod of the lab whose container has a hostPort.
func podObject(host *lab.Host, hostIP string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: host.Name,
			CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		},
		Spec: corev1.PodSpec{
			NodeName: host.Node.Name,
			Containers: []corev1.Container{{Name: "server", Image: "server", Ports: []corev1.ContainerPort{
				{ContainerPort: lab.PortTCP, HostPort: hostPort, HostIP: hostIP},
			}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: host.Addr4.String(),
			PodIPs: []corev1.PodIP{{IP: host.Addr4.String()}, {IP: host.Addr6.String()}},
		},
	}
}

// R33: a hostPort is served at all addresses of its node, for pods and the node; on loopback only for the node.
// It is removed with its pod.
func TestHostPort(t *testing.T) {
	w := startWorld(t, "node-a")
	elsewhere := podObject(w.Host("b2"), "") // no conflict on this node
	elsewhere.CreationTimestamp = metav1.NewTime(elsewhere.CreationTimestamp.Add(time.Hour))
	w.write("b2", elsewhere)
	w.apply("a2", podObject(w.Host("a2"), ""))
	own, other := w.Host("node-a"), w.Host("node-b")
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(own), hostPort), "a2")
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(other), hostPort), closed)
		for _, to := range f.loopbacks() {
			w.wantMeet(t, "node-a", f, netip.AddrPortFrom(to.Addr(), hostPort), "a2")
			w.wantMeet(t, "a1", f, netip.AddrPortFrom(to.Addr(), hostPort), closed)
		}
	})
	w.remove("a2")
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(own), hostPort), closed)
		w.wantMeet(t, "node-a", f, netip.AddrPortFrom(f.loopbacks()[0].Addr(), hostPort), closed)
	})
}

// R33: pods with one hostPort and a hostIP each do not conflict.
func TestHostPortsOfSeveralHostIPs(t *testing.T) {
	w := startWorld(t, "node-a")
	own, extra := w.Host("node-a"), netip.MustParseAddr("203.0.113.7")
	w.addAddress(own, extra)
	w.write("a1", podObject(w.Host("a1"), own.Addr4.String()))
	w.write("a2", podObject(w.Host("a2"), extra.String()))
	w.apply("a3", podObject(w.Host("a3"), "127.0.0.2"))
	for _, f := range []family{ipv4, v4Mapped} {
		w.wantMeet(t, clients, f, netip.AddrPortFrom(own.Addr4, hostPort), "a1")
		w.wantMeet(t, clients, f, netip.AddrPortFrom(extra, hostPort), "a2")
		w.wantMeet(t, "node-a", f, f.choose("127.0.0.2", "", hostPort), "a3")
		w.wantMeet(t, "node-a", f, f.choose("127.0.0.1", "", hostPort), closed)
		w.wantMeet(t, "a1", f, f.choose("127.0.0.2", "", hostPort), closed)
	}
	w.wantMeet(t, clients, ipv6, netip.AddrPortFrom(own.Addr6, hostPort), closed)
}

// R33: of two pods with one hostPort the newer gets it, and when that one has finished, the other.
func TestHostPortFollowsTheNewestPod(t *testing.T) {
	w := startWorld(t, "node-a")
	newer := podObject(w.Host("a3"), "")
	newer.CreationTimestamp = metav1.NewTime(newer.CreationTimestamp.Add(time.Hour))
	w.write("a2", podObject(w.Host("a2"), ""))
	w.apply("a3", newer)
	to := func(f family) netip.AddrPort { return netip.AddrPortFrom(f.of(w.Host("node-a")), hostPort) }
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, to(f), "a3") })
	newer.Status.Phase = corev1.PodSucceeded
	w.apply("a3", newer)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, to(f), "a2") })
}

// R33: a hostIP of 127.0.0.1 means only that address; UDP and TCP are two hostPorts.
func TestHostPortOfOneLoopbackAddress(t *testing.T) {
	w := startWorld(t, "node-a")
	w.write("a1", podObject(w.Host("a1"), "127.0.0.1"))
	udp := podObject(w.Host("a2"), "127.0.0.1")
	port := &udp.Spec.Containers[0].Ports[0]
	port.Protocol, port.ContainerPort = corev1.ProtocolUDP, lab.PortUDP
	w.apply("a2", udp)
	for _, f := range []family{ipv4, v4Mapped} {
		w.wantMeet(t, "node-a", f, f.choose("127.0.0.1", "", hostPort), "a1")
		w.wantMeetUDP(t, "node-a", f, f.choose("127.0.0.1", "", hostPort), "a2")
		w.wantMeet(t, "node-a", f, f.choose("127.0.0.2", "", hostPort), closed)
	}
	w.wantMeet(t, "node-a", ipv6, ipv6.choose("", "::1", hostPort), closed)
}
