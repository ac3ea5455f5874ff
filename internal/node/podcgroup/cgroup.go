// SPDX-License-Identifier: Apache-2.0

// Package podcgroup finds the cgroups into which the kubelet puts the processes of a node's pods, and by these the
// network namespaces of pods.
//
// The kubelet names a pod's cgroup after the pod's UID. It creates the cgroup below its own directory in all
// hierarchies that it uses (cgroup v1: one for each controller; v2: only one), at
//
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_ab.slice   systemd driver
//	kubepods/burstable/pod1234-ab                                                 cgroupfs driver
//
// where pods of QoS class Guaranteed are directly in the first directory (pkg/kubelet/cm of Kubernetes,
// KEP-2254). With the kubelet's --cgroup-root the path is deeper, and the systemd driver adds the names above
// as prefixes: kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1234_ab.slice.
package podcgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kubepods is the kubelet's name for the cgroup of all pods.
const kubepods = "kubepods"

// isRoot reports whether a directory with this name contains the cgroups of all pods.
func isRoot(name string) bool {
	slice, isSlice := strings.CutSuffix(name, ".slice")
	return name == kubepods || isSlice && (slice == kubepods || strings.HasSuffix(slice, "-"+kubepods))
}

// groups returns the existing directories below a root that contain pods' cgroups.
func groups(root string) (all []string) {
	for i, group := range groupsOf(root) {
		if i == 0 || isDirectory(group) {
			all = append(all, group)
		}
	}
	return all
}

// groupsOf returns the same whether they exist or not. The first is the root.
func groupsOf(root string) []string {
	all := []string{root}
	slice, isSlice := strings.CutSuffix(filepath.Base(root), ".slice")
	for _, qos := range []string{"burstable", "besteffort"} {
		name := qos
		if isSlice {
			name = slice + "-" + qos + ".slice"
		}
		all = append(all, filepath.Join(root, name))
	}
	return all
}

// cgroupIn returns the path of a pod's cgroup in one of the groups.
func cgroupIn(group, uid string) string {
	slice, isSlice := strings.CutSuffix(filepath.Base(group), ".slice")
	if !isSlice {
		return filepath.Join(group, "pod"+uid)
	}
	// systemd treats "-" in a slice's name as a level of the hierarchy.
	return filepath.Join(group, slice+"-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// UIDIn returns the UID of the pod whose cgroup, or one below that, has this path; empty: it is not the kubelet's.
func UIDIn(path string) string {
	for group := filepath.Dir(path); group != path; path, group = group, filepath.Dir(group) {
		root := filepath.Dir(group)
		if isRoot(filepath.Base(group)) {
			root = group
		}
		if !isRoot(filepath.Base(root)) || !slices.Contains(groupsOf(root), group) {
			continue
		}
		if uid := uidOf(group, filepath.Base(path)); uid != "" {
			return uid
		}
	}
	return ""
}

// uidOf returns the UID in the name of a pod's cgroup in one of the groups; empty: it is no pod's.
func uidOf(group, name string) string {
	slice, isSlice := strings.CutSuffix(filepath.Base(group), ".slice")
	if !isSlice {
		uid, found := strings.CutPrefix(name, "pod")
		if !found {
			return ""
		}
		return uid
	}
	name, isSlice = strings.CutSuffix(name, ".slice")
	uid, found := strings.CutPrefix(name, slice+"-pod")
	if !isSlice || !found {
		return ""
	}
	return strings.ReplaceAll(uid, "_", "-")
}

// nameable reports whether a UID can be part of a directory's name.
func nameable(uid string) bool {
	return uid != "" && len(uid) < 200 && !strings.ContainsAny(uid, "/\x00")
}

// isDirectory does not follow links: cgroup file systems have none.
func isDirectory(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}
