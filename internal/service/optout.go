// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

const (
	// AnnotationSocketShortcut on a Pod, Namespace or RuntimeClass says whether
	// Services are served at the sockets of the pod: "on" or "off".
	AnnotationSocketShortcut = "beeline.io/socket-shortcut"
	// annotationConfigHash on a mirror pod is the UID of its static pod
	// (pkg/kubelet/types of Kubernetes); k8s.io/api does not export it.
	annotationConfigHash = "kubernetes.io/config.hash"
)

// ConvertNamespace copies out of a v1 Namespace what the rules read.
func ConvertNamespace(in *corev1.Namespace) (*Namespace, error) {
	return &Namespace{in.Name, shortcut(in.Annotations)}, nil
}

// ConvertRuntimeClass copies out of a RuntimeClass what the rules read.
func ConvertRuntimeClass(in *nodev1.RuntimeClass) (*RuntimeClass, error) {
	return &RuntimeClass{in.Name, shortcut(in.Annotations)}, nil
}

// shortcutMost is how much of a value that means nothing is kept.
const shortcutMost = 64

func shortcut(annotations map[string]string) Shortcut {
	v, given := annotations[AnnotationSocketShortcut]
	switch {
	case len(v) > shortcutMost:
		v = v[:shortcutMost]
	case given && v == "":
		v = " " // empty means that there is none
	}
	return Shortcut(v)
}

// decided says whether the value is one that means something.
func (s Shortcut) decided() bool { return s == ShortcutOn || s == ShortcutOff }

// problem says what is wrong with the value, "" if nothing.
func (s Shortcut) problem() string {
	if s == "" || s.decided() {
		return ""
	}
	return fmt.Sprintf("annotation %s: %.40q: write \"on\" or \"off\"; it is ignored", AnnotationSocketShortcut, string(s))
}

// OptOut is a pod whose calls are left to the packet path.
type OptOut struct {
	Pod Ref
	// UID is the one in the name of the pod's cgroup.
	UID string
	// Because is the kind of the object that says so: the Pod itself, its
	// Namespace or its RuntimeClass.
	Because Kind
	// Deleting: its processes may have ended already. Pending: it may have none yet.
	Deleting, Pending bool
	// IPs has one of each family, or the zero Addr.
	IPs [2]netip.Addr
}

// OptOutProblem is what an object asks for about the socket shortcut and does
// not get.
type OptOutProblem struct {
	Object Ref
	Reason string
}

// OptOuts knows the pods of one node that have opted out of the socket
// shortcut. What it says depends on the objects that are left, not on the order
// in which they came. It is for one goroutine.
type OptOuts struct {
	node string
	// pods has those of this node that have not finished, namespaces and classes
	// the annotations that are there.
	pods                map[Ref]*Pod
	namespaces, classes map[string]Shortcut

	list     []OptOut
	problems []OptOutProblem
}

// NewOptOuts returns one without objects, for the node of that name.
func NewOptOuts(node string) *OptOuts {
	return &OptOuts{node: node, pods: map[Ref]*Pod{}, namespaces: map[string]Shortcut{}, classes: map[string]Shortcut{}}
}

// Apply takes over a batch of changes as one step, and says whether Pods or
// Problems are others now. It costs nothing where no object is concerned.
func (o *OptOuts) Apply(changes []Change) (changed bool) {
	touched := false
	for _, c := range changes {
		switch c.Ref.Kind {
		case KindPod:
			touched = o.setPod(c) || touched
		case KindNamespace:
			var value Shortcut
			if n, ok := c.Object.(*Namespace); ok {
				value = n.Shortcut
			}
			touched = setShortcut(o.namespaces, c.Ref.Name, value) || touched
		case KindRuntimeClass:
			var value Shortcut
			if r, ok := c.Object.(*RuntimeClass); ok {
				value = r.Shortcut
			}
			touched = setShortcut(o.classes, c.Ref.Name, value) || touched
		}
	}
	if !touched {
		return false
	}
	list, problems := o.decide()
	changed = !slices.Equal(list, o.list) || !slices.Equal(problems, o.problems)
	o.list, o.problems = list, problems
	return changed
}

func (o *OptOuts) setPod(c Change) (touched bool) {
	p, ok := c.Object.(*Pod)
	if ok && o.node != "" && p.Node == o.node && !p.Finished {
		o.pods[c.Ref] = p
		return true
	}
	_, touched = o.pods[c.Ref]
	delete(o.pods, c.Ref)
	return touched
}

// setShortcut keeps a value by the name of its object; none if it is empty.
func setShortcut(all map[string]Shortcut, name string, value Shortcut) (touched bool) {
	if all[name] == value {
		return false
	}
	if all[name] = value; value == "" {
		delete(all, name)
	}
	return true
}

// Pods are those that have opted out, sorted by their Refs. The list must not be
// altered.
func (o *OptOuts) Pods() []OptOut { return o.list }

// Problems are sorted by object. The list must not be altered.
func (o *OptOuts) Problems() []OptOutProblem { return o.problems }

func (o *OptOuts) decide() (list []OptOut, problems []OptOutProblem) {
	note := func(object Ref, reason string) {
		if reason != "" {
			problems = append(problems, OptOutProblem{object, reason})
		}
	}
	for name, s := range o.namespaces {
		note(Ref{KindNamespace, "", name}, s.problem())
	}
	for name, s := range o.classes {
		note(Ref{KindRuntimeClass, "", name}, s.problem())
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.pods), Ref.Compare) {
		p := o.pods[ref]
		note(ref, p.Shortcut.problem())
		because, off := decideOptOut(p, o.namespaces[p.Namespace], o.classes[p.RuntimeClass])
		if !off {
			continue
		}
		out := OptOut{Pod: ref, UID: cmp.Or(p.StaticUID, p.UID), Because: because, Deleting: p.Deleting, Pending: p.Pending}
		copy(out.IPs[:], p.IPs)
		if reason := cannotOptOut(p, out); reason != "" {
			note(ref, reason)
			continue
		}
		list = append(list, out)
	}
	slices.SortStableFunc(problems, func(a, b OptOutProblem) int { return a.Object.Compare(b.Object) })
	return list, problems
}

// decideOptOut: the Pod's own annotation wins, then its Namespace's, then its
// RuntimeClass's.
func decideOptOut(p *Pod, namespace, class Shortcut) (because Kind, off bool) {
	if p.RuntimeClass == "" {
		class = ""
	}
	for _, says := range []struct {
		kind  Kind
		value Shortcut
	}{{KindPod, p.Shortcut}, {KindNamespace, namespace}, {KindRuntimeClass, class}} {
		if says.value.decided() {
			return says.kind, says.value == ShortcutOff
		}
	}
	return "", false
}

// cannotOptOut says why a pod keeps the socket shortcut that should not, "" if it
// need not.
func cannotOptOut(p *Pod, o OptOut) string {
	switch {
	case p.HostNetwork:
		return fmt.Sprintf("%s asks that it has no socket shortcut, but it is on the host's network, where its sockets cannot be told from the node's: "+
			"it keeps the shortcut; annotate the Pod with %s: \"on\" if that is right", o.asker(p), AnnotationSocketShortcut)
	case o.UID == "":
		return fmt.Sprintf("%s asks that it has no socket shortcut, but the Pod has no metadata.uid, by which the kubelet names its cgroup: "+
			"it keeps the shortcut; write the UID", o.asker(p))
	}
	return ""
}

// asker names the object whose annotation decides.
func (o OptOut) asker(p *Pod) string {
	switch o.Because {
	case KindNamespace:
		return Ref{KindNamespace, "", p.Namespace}.String()
	case KindRuntimeClass:
		return Ref{KindRuntimeClass, "", p.RuntimeClass}.String()
	}
	return "its annotation"
}
