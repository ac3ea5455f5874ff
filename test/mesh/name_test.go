// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh"
)

// TestNamesOfCgroups: a pod of --mesh-cgroups is called by its name in Kubernetes, once the agent has its Pod, whatever
// labels that has. Until then an error says why the name is not known and what to pass.
func TestNamesOfCgroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a1 := w.Host("a1")
	w.startProxy(haproxy, "a1")
	w.startAgent()
	w.notFound("default/a1", "knows no running pod of this node with the UID "+a1.PodUID(), "pass its cgroup instead", a1.Cgroup)
	w.verify(a1.Cgroup, 0, mesh.ByProxy, mesh.Directly, mesh.ByProxy)
	w.must(w.folder.Put("a1", meshed(a1, func(p *corev1.Pod) { p.Labels, p.Spec.Containers = nil, p.Spec.Containers[:1] })))
	w.eventually("the pod has its name", func() bool {
		return slices.ContainsFunc(w.meshStatus().Pods, func(p api.MeshPod) bool { return p.Name == "default/a1" && p.CgroupDirectory == a1.Cgroup })
	})
	for _, name := range []string{"default/a1", "a1", a1.Cgroup} {
		w.verify(name, 0, mesh.ByProxy, mesh.Directly, mesh.ByProxy)
	}
	w.must(w.folder.Remove("a1"))
	w.eventually("its name is forgotten", func() bool {
		return !slices.ContainsFunc(w.meshStatus().Pods, func(p api.MeshPod) bool { return p.Name != "" })
	})
	w.notFound("default/a1", "knows no running pod")
}

// notFound: `beeline mesh verify` ends with an error that has all of these words.
func (w *world) notFound(pod string, words ...string) {
	w.t.Helper()
	out, err := w.Host("node-a").Command(w.t.Context(), program, "mesh", "verify", pod, "--agent-socket", w.agent.Socket()).CombinedOutput()
	if err == nil {
		w.t.Errorf("mesh verify %s succeeds: %s", pod, out)
	}
	for _, word := range append(words, pod) {
		if !strings.Contains(string(out), word) {
			w.t.Errorf("mesh verify %s prints %q, want %q in it", pod, out, word)
		}
	}
}
