// SPDX-License-Identifier: Apache-2.0

// Package pods finds the network namespaces of a node's pods by the cgroups
// that the kubelet puts their processes into, and keeps the table of those that
// have opted out of the socket shortcut.
//
// The kubelet names a pod's cgroup by the pod's UID, below a directory of its
// own, in all hierarchies that it uses (cgroup v1: each controller's; v2: the
// one), at
//
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_ab.slice   systemd driver
//	kubepods/burstable/pod1234-ab                                                 cgroupfs driver
//
// where pods of the quality of service "guaranteed" stand directly in the first
// directory (pkg/kubelet/cm of Kubernetes, KEP-2254). With --cgroup-root it is
// further down, and with the systemd driver bears the names above it:
// kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1234_ab.slice.
package pods

import (
	"os"
	"path/filepath"
	"strings"
)

// kubepods is the kubelet's name for the cgroup of all pods.
const kubepods = "kubepods"

// isRoot says whether a directory of that name holds the cgroups of all pods.
func isRoot(name string) bool {
	slice, isSlice := strings.CutSuffix(name, ".slice")
	return name == kubepods || isSlice && (slice == kubepods || strings.HasSuffix(slice, "-"+kubepods))
}

// groups are the directories that pods' cgroups stand in, below a root, that
// exist.
func groups(root string) []string {
	all := []string{root}
	slice, isSlice := strings.CutSuffix(filepath.Base(root), ".slice")
	for _, qos := range []string{"burstable", "besteffort"} {
		name := qos
		if isSlice {
			name = slice + "-" + qos + ".slice"
		}
		if path := filepath.Join(root, name); isDirectory(path) {
			all = append(all, path)
		}
	}
	return all
}

// cgroupIn is where the cgroup of a pod would be in one of the groups.
func cgroupIn(group, uid string) string {
	slice, isSlice := strings.CutSuffix(filepath.Base(group), ".slice")
	if !isSlice {
		return filepath.Join(group, "pod"+uid)
	}
	// systemd reads "-" in a slice's name as a level of the hierarchy.
	return filepath.Join(group, slice+"-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// nameable says whether a UID can be part of a directory's name.
func nameable(uid string) bool {
	return uid != "" && len(uid) < 200 && !strings.ContainsAny(uid, "/\x00")
}

// isDirectory does not follow links: the kernel has none there.
func isDirectory(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}
