// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"

	"beeline.io/beeline/internal/node/podcgroup"
)

// SetNames names the pods of --mesh-cgroups, as far as these are cgroups of the kubelet, which have the UIDs of pods in
// their paths.
func (s *Shortcut) SetNames(sidecars *Sidecars) {
	if len(s.config.cgroups) == 0 {
		return
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.config.cgroups {
		s.pods[i].Name, s.pods[i].NoNameReason = nameOf(s.pods[i].CgroupDirectory, sidecars)
	}
}

// nameOf returns the name of the pod of a cgroup, or why it is not known.
func nameOf(directory string, sidecars *Sidecars) (name, unnamed string) {
	uid := podcgroup.UIDIn(directory)
	if uid == "" {
		return "", "no directory in its path has the UID of a pod in its name, as the kubelet's have (kubepods.slice/…-podUID.slice, kubepods/…/podUID)"
	}
	pod, found := sidecars.NamedBy(uid)
	if !found {
		return "", fmt.Sprintf("the agent knows no running pod of this node with the UID %s", uid)
	}
	return pod.Namespace + "/" + pod.Name, ""
}
