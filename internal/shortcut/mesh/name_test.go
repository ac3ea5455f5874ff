// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"strings"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// TestFindPod: a pod is found by its name, by a part that no other has, or by its cgroup; what stands for several is
// refused, and where names are not known the error says why and what to pass.
func TestFindPod(t *testing.T) {
	const odd = "/sys/fs/cgroup/app.slice/x.scope"
	s := &Status{
		Pods: []Pod{
			{Name: "shop/web", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod1"}, {Name: "bank/web", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod2"},
			{Name: "shop/db", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod3"}, {CgroupDirectory: odd, NoNameReason: "it is odd"},
			{Name: "shop/db", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod3", UID: "3"}, // selected, too
			{Name: "shop/two", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod4/a"}, {Name: "shop/two", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod4/b"},
		},
		LeftAlone: []Left{{Name: "shop/old", Why: "it is ambient"}},
	}
	for name, want := range map[string]string{
		"shop/web": "shop/web", "bank/web": "bank/web", "db": "shop/db", "shop/db": "shop/db", "pod2": "bank/web", "/sys/fs/cgroup/kubepods/pod2": "bank/web",
		odd: odd, "app.slice": odd, "a": "shop/two",
		"web": "write shop/web or bank/web", "kubepods": "stands for several", "shop/two": "write /sys/fs/cgroup/kubepods/pod4/a or /sys/fs/cgroup/kubepods/pod4/b",
		"shop/old": "it is ambient", "": "no pod",
		"c":         `no pod "c" with a proxy on this node. If it is one of these, whose names are not known, pass its cgroup instead: ` + odd + ": it is odd",
		"shop/webb": `no pod "shop/webb" with a proxy on this node, did you mean "shop/web"? If it is one of these`,
	} {
		pod, err := s.Find(name)
		if err == nil && pod.Label() != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v (%v), want %q", name, pod, err, want)
		}
	}
	s.Pods = append(s.Pods[:0:0], Pod{CgroupDirectory: "/1", NoNameReason: "x"}, Pod{CgroupDirectory: "/2", NoNameReason: "x"}, Pod{CgroupDirectory: "/3", NoNameReason: "x"}, Pod{CgroupDirectory: "/4", NoNameReason: "x"}, Pod{CgroupDirectory: "/5", NoNameReason: "x"})
	if _, err := s.Find("c"); err == nil || !strings.HasSuffix(err.Error(), "/1: x; /2: x; /3: x; and 2 others") {
		t.Errorf("of five pods without a name: %v", err)
	}
}

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
