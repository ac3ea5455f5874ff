// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/test/lab"
)

// selected is the label that Istio's injector adds.
const selected = "security.istio.io/tlsMode"

// meshed is a pod of the lab with Istio's proxy.
func meshed(host *lab.Host, change func(*corev1.Pod)) *corev1.Pod {
	user := int64(proxyUser)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: host.Name, UID: types.UID(host.PodUID()), Labels: map[string]string{selected: "istio"}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{NodeName: host.Node.Name, Containers: []corev1.Container{
			{Name: "app"}, {Name: "istio-proxy", SecurityContext: &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &user}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: host.Addr4.String(), PodIPs: []corev1.PodIP{{IP: host.Addr4.String()}, {IP: host.Addr6.String()}}},
	}
	change(pod)
	return pod
}

// meshStatus asks the agent for the pods that have a proxy.
func (w *world) meshStatus() (s api.MeshStatus) {
	w.t.Helper()
	w.must(api.NewClient(w.agent.Socket()).Get(context.Background(), api.MeshPath, &s))
	return s
}

// awaitPods waits until these pods are served and no others.
func (w *world) awaitPods(names ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the pods %q are served", names), func() bool {
		var served []string
		for _, p := range w.meshStatus().Pods {
			if p.Served() {
				served = append(served, strings.TrimPrefix(p.Name, "default/"))
			}
		}
		slices.Sort(served)
		return slices.Equal(served, names)
	})
}

// TestPodsOfKubernetes: each pod's annotations hold for it and for no other; pods become meshed and stop to be live.
func TestPodsOfKubernetes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-pods=" + selected}
	a1, a2, a3, b1, b2 := w.Host("a1"), w.Host("a2"), w.Host("a3"), w.Host("b1"), w.Host("b2")
	const otherUser = 1500
	w.must(w.folder.Put("a1", meshed(a1, func(p *corev1.Pod) {
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "8081"
		p.Annotations["traffic.sidecar.istio.io/includeInboundPorts"] = "8081"
	})))
	w.must(w.folder.Put("a2", meshed(a2, func(p *corev1.Pod) { // a native sidecar with a user of its own, and a probe
		user, always := int64(otherUser), corev1.ContainerRestartPolicyAlways
		proxy := p.Spec.Containers[1]
		proxy.RestartPolicy, proxy.SecurityContext = &always, &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &user}
		p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{proxy}, p.Spec.Containers[:1]
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(lab.PortTCP)}}}
		p.Annotations["traffic.sidecar.istio.io/includeOutboundIPRanges"] = b1.Addr4.String() + "/32"
		p.Annotations["traffic.sidecar.istio.io/includeOutboundPorts"] = "8081"
	})))
	w.must(w.folder.Put("a3", meshed(a3, func(p *corev1.Pod) { p.Labels["istio.io/dataplane-mode"] = "ambient" })))
	w.startProxy(haproxy, "a1")
	w.startProxyOf(haproxy, "a2", otherUser)
	w.must(w.agent.Start())
	w.awaitPods("a1", "a2")
	if left := w.meshStatus().LeftAlone; len(left) != 1 || left[0].Name != "default/a3" || !strings.Contains(left[0].Why, "ambient") {
		t.Errorf("left alone: %v", left)
	}
	w.ways([]way{
		{"a1 to a port", a1, b1, lab.PortTCP, true},
		{"a1 to an excluded port", a1, b1, lab.PortHTTP, false},
		{"a2 to an included network", a2, b1, lab.PortTCP, true},
		{"a2 to another network", a2, b2, lab.PortTCP, false},
		{"a2 to an included port of another network", a2, b2, lab.PortHTTP, true},
		{"a3, ambient", a3, b1, lab.PortTCP, false},
		{"client to an included port of a1", w.Host("client"), a1, lab.PortHTTP, true},
		{"client to another port of a1", w.Host("client"), a1, lab.PortTCP, false},
		{"client to a probed port of a2", w.Host("client"), a2, lab.PortTCP, true},
		{"node to a probed port of a2", w.Host("node-a"), a2, lab.PortTCP, false},
		{"node to another port of a2", w.Host("node-a"), a2, lab.PortHTTP, true},
		{"client to a3", w.Host("client"), a3, lab.PortTCP, false},
	})
	w.verify("default/a1", 0, mesh.ByProxy, mesh.Directly, mesh.Directly)
	w.run("node-a", "nft", `table ip rejecting { chain forward { type filter hook forward priority 0; ip daddr 192.0.2.1 meta l4proto tcp reject with tcp reset; }; }`)
	w.verify("a1", 0, mesh.ByProxy, mesh.Directly, mesh.Directly) // what rejects the proxy's connection is beyond the pod
	w.run("node-a", "nft", "delete table ip rejecting")
	w.verify("default/a2", 0, mesh.Directly, mesh.Directly, mesh.Directly, "--to", netip.AddrPortFrom(b2.Addr4, lab.PortTCP).String(), "--port", "8080")
	w.verify("default/a2", 0, mesh.ByProxy, mesh.Directly, mesh.ByProxy, "--to", netip.AddrPortFrom(b1.Addr4, lab.PortTCP).String(), "--port", "8081")
	// Each change without a restart.
	w.must(w.folder.Put("a1", meshed(a1, func(*corev1.Pod) {})))
	w.eventually("the annotations of a1 are gone", func() bool { return w.goes(a1, b1, lab.PortHTTP) && w.goes(w.Host("client"), a1, lab.PortTCP) })
	w.must(w.folder.Put("a2", meshed(a2, func(p *corev1.Pod) { p.Labels = nil })))
	w.awaitPods("a1")
	w.eventually("nothing is attached to a2", func() bool { return !w.goes(a2, b1, lab.PortTCP) }) // the status is first
	w.ways([]way{{"a2 without the label", a2, b1, lab.PortTCP, false}, {"client to a2 without the label", w.Host("client"), a2, lab.PortTCP, false}})
	w.must(w.agent.Kill())
	w.ways([]way{{"a1 without an agent", a1, b1, lab.PortTCP, true}})
	w.must(w.agent.Start())
	w.awaitPods("a1")
	w.firstConnection()
}

// verify: `beeline mesh verify` finds these ways of the application, the proxy and this host.
func (w *world) verify(pod string, code int, application, proxy, inbound string, flags ...string) {
	w.t.Helper()
	if got, want := w.verified(pod, code, flags...), []string{application, proxy, inbound}; !slices.Equal(got, want) {
		w.t.Errorf("mesh verify %s %v: %q, want %q", pod, flags, got, want)
	}
}

// verified returns the ways that `beeline mesh verify` finds.
func (w *world) verified(pod string, code int, flags ...string) (ways []string) {
	w.t.Helper()
	cmd := w.Host("node-a").Command(w.t.Context(), append([]string{program, "mesh", "verify", pod, "--agent-socket", w.agent.Socket(), "-o", "json"}, flags...)...)
	out, err := cmd.Output()
	var list struct{ Items []mesh.Finding }
	if e := json.Unmarshal(out, &list); e != nil || cmd.ProcessState.ExitCode() != code {
		w.t.Fatalf("mesh verify %s: %v (%v), want exit code %d; it printed %s", pod, err, e, code, out)
	}
	for _, f := range list.Items {
		ways = append(ways, f.Way)
	}
	return ways
}

// A way is a connection that goes through a proxy or not.
type way struct {
	name     string
	from, to *lab.Host
	port     uint16
	proxied  bool
}

func (w *world) ways(all []way) {
	w.t.Helper()
	for _, c := range all {
		if got := w.goes(c.from, c.to, c.port); got != c.proxied {
			w.t.Errorf("%s: goes through a proxy: %v, want %v", c.name, got, c.proxied)
		}
	}
}

// goes reports whether a connection goes through a proxy: at the client's end its own address is that of loopback; at
// the server's the client's is another one than the client has.
func (w *world) goes(from, to *lab.Host, port uint16) bool {
	w.t.Helper()
	conn := w.open(from.Name, netip.AddrPortFrom(to.Addr4, port), lab.DialOptions{})
	defer conn.Close()
	if port == lab.PortHTTP {
		fmt.Fprintf(conn, "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		text := make([]byte, 4096)
		n, err := conn.Read(text)
		w.must(err)
		return local(conn).IsLoopback() || !strings.Contains(string(text[:n]), local(conn).String()+":")
	}
	return local(conn).IsLoopback() || w.ask(conn).Peer.Addr() != local(conn)
}

// connectAndLook connects, and looks whether the kernel has the socket connected to 127.0.0.1:15001.
const connectAndLook = `exec 3<>/dev/tcp/%s/%d
socket=$(readlink /proc/$$/fd/3)
grep "0100007F:3A99 01 .* ${socket//[^0-9]/} " /proc/self/net/tcp && echo proxied`

// firstConnection: the first process of a new pod connects at once, and its connection goes to the proxy. The kubelet
// creates the cgroup some time before.
func (w *world) firstConnection() {
	w.t.Helper()
	a1, to := w.Host("a1"), netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	uid := "0badcafe-1111-4222-8333-444455556666"
	w.must(w.folder.Put("fresh", meshed(a1, func(p *corev1.Pod) {
		p.Name, p.UID = "fresh", types.UID(uid)
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "8081"
	})))
	directory := filepath.Join(filepath.Dir(filepath.Dir(a1.Cgroup)), "kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice", "x.scope")
	w.must(os.MkdirAll(directory, 0o755))
	w.t.Cleanup(func() {
		os.Remove(directory)
		os.Remove(filepath.Dir(directory))
	})
	w.eventually("the cgroup has programs", func() bool {
		return slices.ContainsFunc(w.meshStatus().Pods, func(p api.MeshPod) bool { return p.Name == "default/fresh" && p.CgroupID != 0 })
	})
	begin := time.Now()
	out := w.runIn(directory, a1, "bash", "-c", fmt.Sprintf(connectAndLook, to.Addr(), to.Port()))
	if !strings.Contains(out, "proxied") {
		w.t.Errorf("the first connection of a new pod does not go to the proxy (%v)", time.Since(begin))
	}
	w.rulesByCgroup(directory)
}

// rulesByCgroup: the pod's rules hold also in a network namespace that no agent has seen. There is neither a proxy nor
// a route: a redirected connection is refused by loopback, an excluded one finds no route.
func (w *world) rulesByCgroup(directory string) {
	w.t.Helper()
	w.must(w.agent.Kill())
	for port, want := range map[uint16]string{lab.PortTCP: "Connection refused", lab.PortHTTP: "Network is unreachable"} {
		out := w.runIn(directory, w.Host("a1"), "unshare", "--net", "bash", "-c", fmt.Sprintf("ip link set lo up; exec 3<>/dev/tcp/%s/%d || true", w.Host("b1").Addr4, port))
		if !strings.Contains(out, want) {
			w.t.Errorf("port %d: %q, want %q", port, out, want)
		}
	}
}
