// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func hostPort(hostIP string, host, container int32, protocol corev1.Protocol) corev1.ContainerPort {
	return corev1.ContainerPort{HostIP: hostIP, HostPort: host, ContainerPort: container, Protocol: protocol}
}

var http8000 = hostPort("", 8000, 8080, "TCP")

func convertPod(p *corev1.Pod, options ...func(*corev1.Pod)) *Pod {
	for _, o := range options {
		o(p)
	}
	return must(ConvertPod(p))
}

func podIPs(ips ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIPs = nil
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

func TestR33HostPorts(t *testing.T) {
	const second = "198.51.100.1"
	withSecond := func(objects ...Object) *Cluster {
		table := cluster(testConfig(), objects...)
		table.SetLocalAddresses(addrs(hereIP, second, "127.0.0.1"))
		return table
	}
	onNode := "pod pass, node a masq, outside pass"
	for _, c := range []struct {
		name string
		pod  *Pod
		want expect
	}{
		{"on every address of this node", convertPod(pod("p", 1, http8000)), expect{
			hereIP + ":8000": "all a", second + ":8000": "all a", "127.0.0.1:8000": onNode, thereIP + ":8000": "none",
		}},
		{"of both families", convertPod(pod("p", 1, http8000), podIPs("10.1.0.1", "fd01::2")), expect{
			hereIP + ":8000": "all a", "[2001:db8::1]:8000": "all b", "[::1]:8000": "pod pass, node b masq, outside pass",
		}},
		{"not of a family that the pod lacks", convertPod(pod("p", 1, http8000)), expect{"[2001:db8::1]:8000": "none", "[::1]:8000": "none"}},
		{"an unspecified hostIP is every address", convertPod(pod("p", 1, hostPort("0.0.0.0", 8000, 8080, ""))), expect{
			hereIP + ":8000": "all a", second + ":8000": "all a",
		}},
		{"on one hostIP", convertPod(pod("p", 1, hostPort(second, 8000, 8080, "TCP"))), expect{
			second + ":8000": "all a", hereIP + ":8000": "none", "127.0.0.1:8000": "none",
		}},
		{"on loopback", convertPod(pod("p", 1, hostPort("127.0.0.1", 8000, 8080, "TCP"))), expect{
			"127.0.0.1:8000": onNode, hereIP + ":8000": "none",
		}},
		{"on one hostIP of a family that the pod lacks", convertPod(pod("p", 1, hostPort(hereIP6, 8000, 8080, ""))), expect{"[2001:db8::1]:8000": "none"}},
		{"on one hostIP with a pod of both families", convertPod(pod("p", 1, hostPort(hereIP6, 8000, 8080, "")), podIPs("10.1.0.1", "fd01::2")), expect{
			"[2001:db8::1]:8000": "all b", hereIP + ":8000": "none",
		}},
		{"on a foreign address", convertPod(pod("p", 1, hostPort("8.8.8.8", 53, 53, "UDP"))), expect{"8.8.8.8:53/UDP": "none"}},
		{"UDP", convertPod(pod("p", 1, hostPort("", 8000, 8080, "UDP"))), expect{hereIP + ":8000/UDP": "all a", hereIP + ":8000": "none"}},
		{"without an address yet", convertPod(pod("p", 1, http8000), podIPs()), expect{hereIP + ":8000": "none"}},
		{"on another node", convertPod(pod("p", 1, http8000), func(p *corev1.Pod) { p.Spec.NodeName = "there" }), expect{hereIP + ":8000": "none"}},
		{"hostNetwork", convertPod(pod("p", 1, http8000), func(p *corev1.Pod) { p.Spec.HostNetwork = true }), expect{hereIP + ":8000": "none"}},
		{"succeeded", convertPod(pod("p", 1, http8000), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), expect{hereIP + ":8000": "none"}},
		{"failed", convertPod(pod("p", 1, http8000), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), expect{hereIP + ":8000": "none"}},
		{"being deleted", convertPod(pod("p", 1, http8000), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(2, 0)} }), expect{hereIP + ":8000": "none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := withSecond(c.pod)
			check(t, table, c.want)
			checkSound(t, table)
		})
	}
	p := withSecond(convertPod(pod("p", 1, hostPort("8.8.8.8", 53, 53, "UDP")))).Plan(Ref{KindPod, "default", "p"})
	if p == nil || len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Message, "8.8.8.8") {
		t.Errorf("foreign address: %+v", p)
	}
}

func TestR33DifferentHostIPOrProtocolIsNoConflict(t *testing.T) {
	const second = "198.51.100.1"
	table := cluster(testConfig(),
		convertPod(pod("p", 1, hostPort(hereIP, 8000, 8080, "TCP")), podIPs("10.1.0.1")),
		convertPod(pod("q", 2, hostPort(second, 8000, 8080, "TCP")), podIPs("10.1.0.2")),
		convertPod(pod("r", 3, hostPort("", 8000, 8080, "UDP")), podIPs("10.1.0.3")),
	)
	table.SetLocalAddresses(addrs(hereIP, second))
	check(t, table, expect{hereIP + ":8000": "all a", second + ":8000": "all b", hereIP + ":8000/UDP": "all c", second + ":8000/UDP": "all c"})
	for ref, p := range table.Owners() {
		if len(p.Problems) != 0 {
			t.Errorf("%s: %q", ref, p.Problems)
		}
	}
}

func TestR33TheNewestLivePodHasTheHostPort(t *testing.T) {
	old := convertPod(pod("old", 1, http8000), podIPs("10.1.0.1"))
	newer := convertPod(pod("new", 2, http8000), podIPs("10.1.0.2"))
	at := hereIP + ":8000"
	table := cluster(testConfig(), newer, old)
	check(t, table, expect{at: "all b"})
	table.Apply(changes(convertPod(pod("new", 2, http8000), podIPs("10.1.0.2"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })))
	check(t, table, expect{at: "all a"})
	table.Apply(changes(newer))
	check(t, table, expect{at: "all b"})
	table.Apply([]Change{gone(newer)})
	check(t, table, expect{at: "all a"})
	table.Apply([]Change{gone(old)})
	check(t, table, expect{at: "none"})
}

func TestR33HostPortsFollowAddressChanges(t *testing.T) {
	table := cluster(testConfig(), convertPod(pod("p", 1, http8000)), service("web"))
	d := table.SetLocalAddresses(addrs("198.51.100.1"))
	if d.Resolved != 1 || len(d.Plans) != 1 {
		t.Errorf("resolved %d, changed %d", d.Resolved, len(d.Plans))
	}
	check(t, table, expect{"198.51.100.1:8000": "all a", hereIP + ":8000": "all a"})
	if d := table.SetLocalAddresses(addrs("198.51.100.1", "127.0.0.1")); d.Resolved != 0 {
		t.Errorf("nothing new, resolved %d", d.Resolved)
	}
}

func TestR33WithoutANodeNameNoPodIsLocal(t *testing.T) {
	p := convertPod(pod("p", 1, http8000), func(p *corev1.Pod) { p.Spec.NodeName = "" })
	check(t, cluster(DefaultConfig(), p), expect{"127.0.0.1:8000": "none"})
}

func TestR33OneSetAPort(t *testing.T) {
	table := cluster(testConfig(), convertPod(pod("p", 1, hostPort(hereIP, 8000, 8080, ""), hostPort("127.0.0.1", 8000, 8080, ""))))
	p := table.Plan(Ref{KindPod, "default", "p"})
	if len(p.Sets) != 1 || len(p.Frontends) != 2 {
		t.Errorf("%d sets, %d frontends", len(p.Sets), len(p.Frontends))
	}
	if name := p.Frontends[0].Port.Name; name != "8000/8080" {
		t.Errorf("port name %q", name)
	}
}
