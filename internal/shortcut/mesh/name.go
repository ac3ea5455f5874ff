// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/util/suggest"
)

// SetNames names the pods of Config.Cgroups, as far as these are cgroups of the kubelet, which have the UIDs of pods in
// their paths.
func (s *Shortcut) SetNames(sidecars *Sidecars) {
	if len(s.config.Cgroups) == 0 {
		return
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.config.Cgroups {
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

// Find returns the pod with a name, with or without its namespace, or with a cgroup or a directory on the way to that.
//
// Errors: what stands for several pods, or for none.
func (s *Status) Find(name string) (*Pod, error) {
	var exact, found []*Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		switch {
		case name == "":
		case p.Name == name || p.CgroupDirectory == name:
			exact = append(exact, p)
		case strings.HasSuffix(p.Name, "/"+name) || slices.Contains(strings.Split(p.CgroupDirectory, "/"), name):
			found = append(found, p)
		}
	}
	if len(exact) > 0 {
		found = exact
	}
	// --mesh-pods may select a pod that --mesh-cgroups names, too.
	found = slices.CompactFunc(found, func(a, b *Pod) bool { return a.CgroupDirectory == b.CgroupDirectory && a.CgroupDirectory != "" })
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%q stands for several pods with a proxy: write %s or %s", name, found[0].apart(found[1]), found[1].apart(found[0]))
	}
	return nil, s.notFound(name)
}

// apart is what people call the pod when they do not mean another one.
func (p *Pod) apart(other *Pod) string {
	if p.Label() == other.Label() {
		return p.CgroupDirectory
	}
	return p.Label()
}

// mostUnnamed is how many pods without a name an error lists.
const mostUnnamed = 3

func (s *Status) notFound(name string) error {
	for _, l := range s.LeftAlone {
		if l.Name == name {
			return fmt.Errorf("pod %s is left alone: %s", name, l.Why)
		}
	}
	var known, unnamed []string
	for i := range s.Pods {
		p := &s.Pods[i]
		known = append(known, p.Label())
		if p.NoNameReason != "" {
			unnamed = append(unnamed, fmt.Sprintf("%s: %s", p.CgroupDirectory, p.NoNameReason))
		}
	}
	hint := suggest.DidYouMean(name, known)
	if n := len(unnamed); n > mostUnnamed {
		unnamed = append(unnamed[:mostUnnamed], fmt.Sprintf("and %d others", n-mostUnnamed))
	}
	if len(unnamed) > 0 {
		hint = cmp.Or(hint, ".") + " If it is one of these, whose names are not known, pass its cgroup instead: " + strings.Join(unnamed, "; ")
	}
	return fmt.Errorf("no pod %q with a proxy on this node%s", name, hint)
}
