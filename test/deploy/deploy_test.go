// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"beeline.io/beeline/test/lab"
)

// TestDeployment follows deploy/kubernetes from `kubectl apply` to the removal. Its parts share a cluster and
// run in this order.
func TestDeployment(t *testing.T) {
	l := lab.New(t)
	must(t, l.StartServers())
	s := startServer(t, l)
	t.Run("the API server takes the manifests", s.applied)
	t.Run("each permission is needed", s.permissions)
	t.Run("pods get the host stack", s.hostStack)
	n := s.container(t, l.Host("node-a"), loadImage(t))
	for _, part := range []struct {
		name string
		test func(*labNode, *testing.T)
	}{
		{"its image installs the library", (*labNode).installsLibrary},
		{"it needs the node's BPF file system", (*labNode).needsBPF},
		{"it takes over from kube-proxy", (*labNode).migrates},
		{"the container serves", (*labNode).serves},
		{"traffic goes on while it is replaced", (*labNode).replaced},
		{"it ends sockets of pods", (*labNode).endsSockets},
		{"it serves a pod with a proxy", (*labNode).meshes},
		{"it tells no secrets", (*labNode).secrets},
		{"each capability is needed", (*labNode).capabilities},
		{"cleanup removes all of it", (*labNode).cleanup},
	} {
		if !t.Run(part.name, func(t *testing.T) { n.t = t; part.test(n, t); n.t = t }) {
			break
		}
		n.t = t
	}
}

// applied: neither a dry run nor an apply has warnings, and the DaemonSet's pods are admitted.
func (s *server) applied(t *testing.T) {
	for _, dryRun := range []bool{true, false} {
		for _, o := range s.manifests {
			if _, err := s.apply(t.Context(), o, dryRun); err != nil {
				t.Errorf("%s %s, dry run %t: %v", o.GetKind(), o.GetName(), dryRun, err)
			}
		}
	}
	daemonSet, err := s.resource(s.manifests[len(s.manifests)-1]).Get(t.Context(), "beeline", metav1.GetOptions{})
	must(t, err)
	template, _, err := unstructured.NestedMap(daemonSet.Object, "spec", "template")
	must(t, err)
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetNamespace("kube-system")
	pod.SetName("beeline-dry-run")
	admitted, err := s.apply(t.Context(), pod, true)
	must(t, err)
	if priority, _, _ := unstructured.NestedInt64(admitted.Object, "spec", "priority"); priority < 2000000000 {
		t.Errorf("the pod's priority is %d", priority)
	}
	if warnings := s.warnings.take(); len(warnings) > 0 {
		t.Errorf("the API server warns: %q", warnings)
	}
}

// needsBPF: without one on the node, the agent does not mount one that would end with the container.
func (n *labNode) needsBPF(t *testing.T) {
	n.bpf = t.TempDir()
	defer func() { n.bpf = "" }()
	if err := n.start(); err == nil || !strings.Contains(err.Error(), "mount one on the node") {
		t.Errorf("without a BPF file system: %v", err)
	}
}

// serves: the socket hooks, the edge and the CLI in the container work.
func (n *labNode) serves(t *testing.T) {
	n.settings += "\nlog-level: debug\n"
	must(t, n.service("web", 20, "b1"))
	must(t, n.start())
	n.wantAnswer("a1", clusterIP(20), "b1")
	n.wantAnswer("node-a", clusterIP(20), "b1")
	n.wantAnswer("client", n.nodePort(20), "b1")
	for _, path := range []string{n.agent.Socket(), n.agent.BPFFS()} {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v: only root may use it", path, info.Mode())
		}
	}
	c := n.pod.Containers[0]
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		eventually(t, probe.HTTPGet.Path+" succeeds", func() error { return n.asKubelet(probe) })
	}
	out, err := n.runc("exec", n.id, "beeline", "status", "--output", "json")
	must(t, err)
	if !json.Valid([]byte(out)) {
		t.Errorf("beeline status in the container prints %s", out)
	}
}

// replaced: connections succeed without an agent, and each new one follows changes.
func (n *labNode) replaced(t *testing.T) {
	for i, end := range []func(){n.stop, n.crash} {
		end()
		n.wantAnswer("a1", clusterIP(20), "b1")
		n.wantAnswer("client", n.nodePort(20), "b1")
		must(t, n.service(fmt.Sprintf("next-%d", i), uint8(21+i), "b2"))
		must(t, n.start())
		n.wantAnswer("a1", clusterIP(uint8(21+i)), "b2")
		n.wantAnswer("client", n.nodePort(20), "b1")
	}
}

// endsSockets: a connected UDP socket of a pod gets an error when its backend is removed (R29).
func (n *labNode) endsSockets(*testing.T) {
	ended := n.removeBackendOf("dns", 25)
	eventually(n.t, "the pod's socket gets an error", ended)
}

// lost is what stops working without a capability: docs/operate/security.md has the same rows.
var lost = map[corev1.Capability]func(*labNode){
	"NET_ADMIN": (*labNode).refusesToStart,
	"SYS_ADMIN": (*labNode).refusesToStart,
	"SYS_PTRACE": func(n *labNode) {
		must(n.t, n.start())
		defer n.stop()
		before := n.gcPasses()
		ended := n.removeBackendOf("lost", 26)
		n.awaitGC(before)
		if ended() == nil {
			n.t.Error("the socket of a pod was ended without CAP_SYS_PTRACE")
		}
	},
	"DAC_READ_SEARCH": func(n *labNode) {
		must(n.t, n.start())
		defer n.stop()
		status, err := n.agent.Status()
		must(n.t, err)
		for _, a := range status.Attachments {
			if !strings.HasPrefix(a.Cgroup, "(id ") {
				n.t.Errorf("status names the cgroup %s without CAP_DAC_READ_SEARCH", a.Cgroup)
			}
		}
	},
}

// capabilities drops each capability in turn.
func (n *labNode) capabilities(t *testing.T) {
	n.stop()
	security := n.pod.Containers[0].SecurityContext
	all := security.Capabilities.Add
	defer func() { security.Capabilities.Add = all }()
	for _, dropped := range all {
		without := slices.DeleteFunc(slices.Clone(all), func(c corev1.Capability) bool { return c == dropped })
		security.Capabilities.Add = without
		t.Run(string(dropped), func(t *testing.T) {
			check := lost[dropped]
			if check == nil {
				t.Fatal("no test shows what this capability is for")
			}
			n.t = t
			check(n)
		})
		n.t = t
	}
	if len(lost) != len(all) {
		t.Errorf("%d capabilities are tested, the DaemonSet has %v", len(lost), all)
	}
}

// refusesToStart: the error names the capability.
func (n *labNode) refusesToStart() {
	err := n.start()
	if name := n.t.Name()[strings.LastIndex(n.t.Name(), "/")+1:]; err == nil || !strings.Contains(err.Error(), "not permitted without CAP_"+name) {
		n.t.Errorf("without CAP_%s: %v", name, err)
	}
}
