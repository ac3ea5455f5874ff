// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// lateAfter is how long finding a pod's namespace may take before that is a condition.
const lateAfter = 10 * time.Second

// Status lists the pods that have opted out.
type Status struct {
	Pods []Pod `json:"pods"`
	// Problems are why pods may not be found.
	Problems condition.List `json:"problems,omitempty"`
}

// Pod is a pod that has opted out.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the UID in the name of its cgroup.
	UID string `json:"uid"`
	// AnnotatedKind is the kind of the object whose annotation applies: pod, namespace or runtimeClass.
	AnnotatedKind string `json:"annotatedKind"`
	// Found means that its network namespace is in the tables.
	Found       bool      `json:"found"`
	NetNSCookie uint64    `json:"netnsCookie,omitempty"`
	Since       time.Time `json:"since"` // when Found last changed
	// Late means that the pod runs but was not found within lateAfter.
	Late bool `json:"late,omitempty"`
	// Problem is why it is not found or cannot be written to the tables.
	Problem string `json:"problem,omitempty"`
}

var because = map[service.Kind]string{
	service.KindPod:          "pod",
	service.KindNamespace:    "namespace",
	service.KindRuntimeClass: "runtimeClass",
}

// Status returns the pods, sorted by namespace and name.
func (t *Tracker) Status() Status {
	roots, searchErr, watchErr := t.follower.Health()
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
	if searchErr != nil {
		s.Problems = append(s.Problems, condition.PodSearchFailed.New("%v", searchErr))
	}
	if len(roots) == 0 {
		s.Problems = append(s.Problems, condition.PodSearchFailed.New("no kubelet directory (.../kubepods.slice or .../kubepods) was found %s", t.where))
	}
	if watchErr != nil {
		s.Problems = append(s.Problems, condition.PodSearchFailed.New("cgroups cannot be watched (%v): new pods are found up to a second late", watchErr).
			Do("raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches"))
	}
	return s
}

func (p *pod) status(now time.Time) Pod {
	s := Pod{
		Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.UID, AnnotatedKind: because[p.Because],
		Found: p.cookie != 0, NetNSCookie: p.cookie, Since: p.since,
	}
	s.Late = !s.Found && !p.Deleting && !p.Pending && now.Sub(p.since) > lateAfter
	switch {
	case p.err != nil:
		s.Problem = p.err.Error()
	case s.Found:
	case p.directory == "":
		s.Problem = "no cgroup has its UID in its name"
	default:
		s.Problem = "no process with its own network namespace in " + p.directory
	}
	return s
}
