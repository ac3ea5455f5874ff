// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/service"
)

// moment is how long a pod may take until its namespace is found.
const moment = 10 * time.Second

// Status is how the pods that have opted out are.
type Status struct {
	Pods []Pod `json:"pods"`
	// Problems say why pods may not be found.
	Problems []string `json:"problems,omitempty"`
}

// Pod is one that has opted out.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the one in the name of its cgroup.
	UID string `json:"uid"`
	// Because names the annotation that decides: pod, namespace or runtimeClass.
	Because string `json:"because"`
	// Found: its network namespace is in the tables.
	Found       bool      `json:"found"`
	NetNSCookie uint64    `json:"netnsCookie,omitempty"`
	Since       time.Time `json:"since"` // it is found, or not found
	// Late: not found for more than a moment, though it runs.
	Late bool `json:"late,omitempty"`
	// Problem says why it is not found or cannot be brought into the tables.
	Problem string `json:"problem,omitempty"`
}

var because = map[service.Kind]string{
	service.KindPod:          "pod",
	service.KindNamespace:    "namespace",
	service.KindRuntimeClass: "runtimeClass",
}

// Status returns the pods sorted by namespace and name.
func (t *Tracker) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Status{Pods: []Pod{}}
	for _, p := range t.pods {
		s.Pods = append(s.Pods, p.status(time.Now()))
	}
	slices.SortFunc(s.Pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+a.UID, b.Namespace+"/"+b.Name+"/"+b.UID)
	})
	if len(t.pods) == 0 {
		return s
	}
	if t.search.err != nil {
		s.Problems = append(s.Problems, t.search.err.Error())
	}
	if len(t.roots) == 0 {
		s.Problems = append(s.Problems, "no directory of a kubelet (.../kubepods.slice or .../kubepods) is found "+t.where+": "+
			"mount the node's cgroups where the agent runs, or name the directory with --pod-cgroups")
	}
	if t.watchErr != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("cgroups cannot be watched (%v), and new pods are found up to a second late: "+
			"raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches", t.watchErr))
	}
	return s
}

func (p *pod) status(now time.Time) Pod {
	s := Pod{
		Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.UID, Because: because[p.Because],
		Found: p.cookie != 0, NetNSCookie: p.cookie, Since: p.since,
	}
	s.Late = !s.Found && !p.Deleting && !p.Pending && now.Sub(p.since) > moment
	switch {
	case p.err != nil:
		s.Problem = p.err.Error()
	case s.Found:
	case len(p.dirs) == 0:
		s.Problem = "no cgroup bears its UID"
	default:
		s.Problem = "no process in a network namespace of its own in " + p.dirs[0]
	}
	return s
}
