// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"
)

// TestFindPod: a pod is found by its name, by a part that no other has, or by its cgroup; what stands for several is
// refused, and where names are not known the error says why and what to pass.
func TestFindPod(t *testing.T) {
	const odd = "/sys/fs/cgroup/app.slice/x.scope"
	s := &MeshStatus{
		Pods: []MeshPod{
			{Name: "shop/web", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod1"}, {Name: "bank/web", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod2"},
			{Name: "shop/db", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod3"}, {CgroupDirectory: odd, NoNameReason: "it is odd"},
			{Name: "shop/db", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod3", UID: "3"}, // selected, too
			{Name: "shop/two", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod4/a"}, {Name: "shop/two", CgroupDirectory: "/sys/fs/cgroup/kubepods/pod4/b"},
		},
		LeftAlone: []MeshLeft{{Name: "shop/old", Why: "it is ambient"}},
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
	s.Pods = append(s.Pods[:0:0], MeshPod{CgroupDirectory: "/1", NoNameReason: "x"}, MeshPod{CgroupDirectory: "/2", NoNameReason: "x"}, MeshPod{CgroupDirectory: "/3", NoNameReason: "x"}, MeshPod{CgroupDirectory: "/4", NoNameReason: "x"}, MeshPod{CgroupDirectory: "/5", NoNameReason: "x"})
	if _, err := s.Find("c"); err == nil || !strings.HasSuffix(err.Error(), "/1: x; /2: x; /3: x; and 2 others") {
		t.Errorf("of five pods without a name: %v", err)
	}
}
