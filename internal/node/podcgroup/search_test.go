// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/node/podcgroup/podcgrouptest"
)

const uid = "0a1b2c3d-0000-4000-8000-00000000abcd"

// Each cgroup layout of a kubelet.
func TestLayouts(t *testing.T) {
	escaped := strings.ReplaceAll(uid, "-", "_")
	for name, dir := range map[string]string{
		"systemd, burstable":  "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + escaped + ".slice",
		"systemd, besteffort": "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + escaped + ".slice",
		"systemd, guaranteed": "kubepods.slice/kubepods-pod" + escaped + ".slice",
		"systemd, nested":     "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + escaped + ".slice",
		"systemd, deeper":     "a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod" + escaped + ".slice",
		"cgroupfs, burstable": "kubepods/burstable/pod" + uid,
		"cgroupfs, best":      "kubepods/besteffort/pod" + uid,
		"cgroupfs, alone":     "kubepods/pod" + uid,
		"cgroupfs, nested":    "kubelet/kubepods/burstable/pod" + uid,
		"in a container":      "system.slice/docker-0123.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + escaped + ".slice",
	} {
		t.Run(name, func(t *testing.T) {
			root, m := t.TempDir(), newMachine()
			m.start(7, 40, 1)
			podcgrouptest.Tree(t, root, "system.slice/sshd.service: 9", dir, dir+"/container: 7")
			f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf}, false)
			f.Set([]Key{{UID: uid}})
			if l := f.Location(Key{UID: uid}); l.Namespace != 1040 || l.Directory != filepath.Join(root, dir) {
				t.Errorf("%+v", l)
			}
			for _, path := range []string{filepath.Join(root, dir), filepath.Join(root, dir, "container"), dir} {
				if got := UIDIn(path); got != uid {
					t.Errorf("the UID in %s is %q", path, got)
				}
			}
			if got := UIDIn(filepath.Dir(dir)); got != "" {
				t.Errorf("the UID in the path of a group of pods is %q", got)
			}
		})
	}
}

// What only looks like the cgroup of a pod has no UID.
func TestNoUIDs(t *testing.T) {
	for _, path := range []string{
		"", "/", ".", "/sys/fs/cgroup/app.slice/x.scope", "/sys/fs/cgroup/podx", "/sys/fs/cgroup/x/pod" + uid, "/kubepods/x/pod" + uid, "/kubepods/pod", "/kubepods/burstable",
		"/kubepods.slice/kubepods-burstable.slice", "/kubepods.slice/pod" + uid, "/kubepods.slice/kubepods-pod" + uid, "/kubepods.slice/kubepods-burstable-podx.slice",
		"/a-kubepods.slice/kubepods-podx.slice", "/kubepods.slice/kubepods-x.slice/kubepods-x-podx.slice",
	} {
		if got := UIDIn(path); got != "" {
			t.Errorf("the UID in %q is %q", path, got)
		}
	}
}

// The UID of a static pod is its hash.
func TestStaticPod(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(7, 40, 1)
	const hash = "d41d8cd98f00b204e9800998ecf8427e"
	podcgrouptest.Tree(t, root, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"+hash+".slice/c: 7")
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf}, false)
	f.Set([]Key{{UID: hash}})
	if l := f.Location(Key{UID: hash}); l.Namespace != 1040 {
		t.Errorf("%+v", l)
	}
}

// A UID is never used as a path, whatever an object contains.
func TestRubbishUIDs(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(7, 40, 1)
	podcgrouptest.Tree(t, root, "kubepods/burstable", "kubepods/pod/x: 7", "kubepods/pod..: 7", "outside: 7", "kubepods/pod: 7")
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf}, false)
	for _, rubbish := range []string{"/../outside", "../outside", "x/..", "/", "", "a\x00b", strings.Repeat("x", 5000), "/x"} {
		f.Set([]Key{{UID: rubbish}})
		if l := f.Location(Key{UID: rubbish}); l != (Location{}) {
			t.Errorf("%+v", l)
		}
	}
}

// Every mounted hierarchy is found, cgroup v2 before v1.
func TestHierarchies(t *testing.T) {
	for name, test := range map[string]struct {
		mountinfo string
		want      []string
	}{
		"v2": {"35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", []string{"/sys/fs/cgroup"}},
		"hybrid": {`23 1 0:21 / / rw - ext4 /dev/sda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`, []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/systemd"}},
		"blanks":  {`1 2 0:3 / /mnt/a\040b rw - cgroup2 x rw` + "\n", []string{"/mnt/a b"}},
		"rubbish": {"\n-\n - cgroup2\n1 2 - cgroup2 x rw\n1 2 3 4 5 6\n\x00\xff - \n", nil},
	} {
		got, err := hierarchies(strings.NewReader(test.mountinfo))
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// Other directories are not mistaken for a kubelet's, links are not followed, and a directory with two paths
// counts once.
func TestSearch(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods.slice.d", "mykubepods", "kubepods.scope", "x.slice/x-kubepods", "user.slice/kubepods.slice",
		"user.slice/kubepods.slice/kubepods-pod1.slice/c/kubepods", "a/kubepods/burstable", "1/2/3/4/kubepods", "1/2/3/4/5/kubepods")
	for link, to := range map[string]string{"loop": root, "kubepods": "a/kubepods", "a/up": ".."} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(root, "a/kubepods"), filepath.Join(root, "user.slice/kubepods.slice"), filepath.Join(root, "1/2/3/4/kubepods")}
	got, err := search([]string{root, filepath.Join(root, "a"), filepath.Join(root, "loop"), filepath.Join(root, "missing")})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	// Configured directories: the kubelet's directory itself, and one behind a link.
	for _, from := range []string{"a/kubepods", "kubepods"} {
		if got, err := search([]string{filepath.Join(root, from)}); err != nil || len(got) != 1 || got[0] != want[0] {
			t.Errorf("from %s: %v (%v), want %s", from, got, err, want[0])
		}
	}
}

// A huge tree costs a bounded number of reads, the error says so, and directories near the top are still found.
func TestSearchInAHugeTree(t *testing.T) {
	root := t.TempDir()
	for i := range 60 {
		for j := range 100 {
			if err := os.MkdirAll(filepath.Join(root, fmt.Sprint("d", i), fmt.Sprint(j)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	podcgrouptest.Tree(t, root, "z/kubepods", "z/9/8/kubepods")
	got, err := search([]string{root})
	if len(got) != 1 || got[0] != filepath.Join(root, "z/kubepods") {
		t.Errorf("found %v, want z/kubepods", got)
	}
	if err == nil || !strings.Contains(err.Error(), "--pod-cgroups") {
		t.Errorf("error %v, want one that names the flag", err)
	}
}
