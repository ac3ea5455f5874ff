// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"

	"beeline.io/beeline/internal/report/condition"
)

const (
	// AnnotationSocketShortcut on a Pod, Namespace or RuntimeClass selects whether Services are served at
	// the pod's sockets: "on" or "off".
	AnnotationSocketShortcut = "beeline.io/socket-shortcut"
	// annotationConfigHash on a mirror pod is the UID of its static pod
	// (pkg/kubelet/types of Kubernetes); k8s.io/api does not export it.
	annotationConfigHash = "kubernetes.io/config.hash"
)

// ConvertNamespace extracts the fields that the rules use from a v1 Namespace.
func ConvertNamespace(in *corev1.Namespace) (*Namespace, error) {
	return &Namespace{in.Name, shortcut(in.Annotations), unknownAnnotations(KindNamespace, in.Annotations)}, nil
}

// ConvertRuntimeClass extracts the fields that the rules use from a RuntimeClass.
func ConvertRuntimeClass(in *nodev1.RuntimeClass) (*RuntimeClass, error) {
	return &RuntimeClass{in.Name, shortcut(in.Annotations), unknownAnnotations(KindRuntimeClass, in.Annotations)}, nil
}

// maxShortcut is the maximum length of an invalid value; the rest is cut off.
const maxShortcut = 64

func shortcut(annotations map[string]string) Shortcut {
	v, given := annotations[AnnotationSocketShortcut]
	switch {
	case len(v) > maxShortcut:
		v = v[:maxShortcut]
	case given && v == "":
		v = " " // empty would mean not set
	}
	return Shortcut(v)
}

// decided reports whether the value is valid.
func (s Shortcut) decided() bool { return s == ShortcutOn || s == ShortcutOff }

// problem returns what is wrong with the value, or "".
func (s Shortcut) problem() string {
	if s == "" || s.decided() {
		return ""
	}
	return fmt.Sprintf("annotation %s: %.40q is ignored", AnnotationSocketShortcut, string(s))
}

// OptOut is a pod that has opted out of the socket shortcut.
type OptOut struct {
	Pod Ref
	// UID is the UID in the name of the pod's cgroup.
	UID string
	// Because is the kind of the object whose annotation applies: Pod, Namespace or RuntimeClass.
	Because Kind
	// Deleting: its processes may have exited already. Pending: it may have none yet.
	Deleting, Pending bool
	// IPs holds one address of each family, or the zero Addr.
	IPs [2]netip.Addr
}

// ObjectProblem is a problem of an object.
type ObjectProblem struct {
	Object  Ref
	Problem condition.Condition
}

// OptOuts holds the pods of one node that have opted out of the socket shortcut. Its state depends
// only on the remaining objects, not on their order. It is not safe for concurrent use.
type OptOuts struct {
	node string
	// pods holds this node's pods that have not finished; namespaces and classes hold the annotations that
	// are set.
	pods                map[Ref]*Pod
	namespaces, classes map[string]Shortcut

	list     []OptOut
	problems []ObjectProblem
}

// NewOptOuts returns an empty OptOuts for the node with this name.
func NewOptOuts(node string) *OptOuts {
	return &OptOuts{node: node, pods: map[Ref]*Pod{}, namespaces: map[string]Shortcut{}, classes: map[string]Shortcut{}}
}

// Apply applies a batch of changes as one step, and reports whether Pods or Problems changed. It is cheap if no
// object is relevant.
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

// setShortcut stores a value by the name of its object, or removes it if it is empty.
func setShortcut(all map[string]Shortcut, name string, value Shortcut) (touched bool) {
	if all[name] == value {
		return false
	}
	if all[name] = value; value == "" {
		delete(all, name)
	}
	return true
}

// Pods returns the pods that have opted out, sorted by their Refs. The list must not be modified.
func (o *OptOuts) Pods() []OptOut { return o.list }

// Problems returns the problems, sorted by object. The list must not be modified.
func (o *OptOuts) Problems() []ObjectProblem { return o.problems }

func (o *OptOuts) decide() (list []OptOut, problems []ObjectProblem) {
	wrong := func(object Ref, s Shortcut) {
		if why := s.problem(); why != "" {
			problems = append(problems, ObjectProblem{object, condition.AnnotationInvalid.New("%s", why).Do("write \"on\" or \"off\"")})
		}
	}
	for name, s := range o.namespaces {
		wrong(Ref{KindNamespace, "", name}, s)
	}
	for name, s := range o.classes {
		wrong(Ref{KindRuntimeClass, "", name}, s)
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.pods), Ref.Compare) {
		p := o.pods[ref]
		wrong(ref, p.Shortcut)
		because, off := decideOptOut(p, o.namespaces[p.Namespace], o.classes[p.RuntimeClass])
		if !off {
			continue
		}
		out := OptOut{Pod: ref, UID: p.CgroupUID(), Because: because, Deleting: p.Deleting, Pending: p.Pending}
		copy(out.IPs[:], p.IPs)
		if why, remedy := cannotOptOut(p, out); why != "" {
			problems = append(problems, ObjectProblem{ref, condition.AnnotationWithoutEffect.New("%s", why).Do("%s", remedy)})
			continue
		}
		list = append(list, out)
	}
	slices.SortStableFunc(problems, func(a, b ObjectProblem) int { return a.Object.Compare(b.Object) })
	return list, problems
}

// decideOptOut evaluates the annotations: the Pod's own takes precedence over its Namespace's, and that over
// its RuntimeClass's.
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

// cannotOptOut returns why a pod cannot opt out of the socket shortcut, and the remedy; "" if it can.
func cannotOptOut(p *Pod, o OptOut) (why, remedy string) {
	switch {
	case p.HostNetwork:
		return fmt.Sprintf("%s opts it out of the socket shortcut, but it is in the host network, where its sockets cannot be distinguished from the node's: "+
			"it keeps the shortcut", o.asker(p)), fmt.Sprintf("annotate the Pod with %s: \"on\" if this is intended", AnnotationSocketShortcut)
	case o.UID == "":
		return fmt.Sprintf("%s opts it out of the socket shortcut, but the Pod has no metadata.uid, after which the kubelet names its cgroup: "+
			"it keeps the shortcut", o.asker(p)), "set metadata.uid"
	}
	return "", ""
}

// asker names the object whose annotation applies.
func (o OptOut) asker(p *Pod) string {
	switch o.Because {
	case KindNamespace:
		return Ref{KindNamespace, "", p.Namespace}.String()
	case KindRuntimeClass:
		return Ref{KindRuntimeClass, "", p.RuntimeClass}.String()
	}
	return "its annotation"
}
