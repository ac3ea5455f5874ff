// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"strings"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// TestNameOf: a pod of --mesh-cgroups is named after the Pod whose UID the kubelet has written into the path.
func TestNameOf(t *testing.T) {
	sidecars := NewSidecars("n", nil)
	pod := func(name, uid, static, node string, finished bool) {
		p := &service.Pod{Namespace: "shop", Name: name, UID: uid, StaticUID: static, Node: node, Finished: finished}
		sidecars.Apply([]service.Change{{Ref: p.Ref(), Object: p}})
	}
	pod("web", "0a1b-2c", "", "n", false)
	pod("etcd", "1111", "d41d8cd9", "n", false)
	pod("done", "2222", "", "n", true)
	pod("elsewhere", "3333", "", "m", false)
	for directory, want := range map[string]string{
		"/c/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b_2c.slice":         "shop/web",
		"/c/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b_2c.slice/x.scope": "shop/web",
		"/c/kubepods/podd41d8cd9": "shop/etcd",
		"/c/kubepods/pod1111":     "no running pod of this node with the UID 1111",
		"/c/kubepods/pod2222":     "no running pod", "/c/kubepods/pod3333": "no running pod",
		"/c/app.slice/x.scope": "no directory in its path", "/c/kubepods/pod": "no directory in its path",
	} {
		name, unnamed := nameOf(directory, sidecars)
		if (name == "") == (unnamed == "") || name+unnamed != want && !strings.Contains(unnamed, want) {
			t.Errorf("%s: %q, %q, want %q", directory, name, unnamed, want)
		}
	}
	sidecars.Apply([]service.Change{{Ref: service.Ref{Kind: service.KindPod, Namespace: "shop", Name: "web"}}})
	if name, _ := nameOf("/c/kubepods/pod0a1b-2c", sidecars); name != "" {
		t.Errorf("a pod that is deleted has the name %q", name)
	}
}
