// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

// optOutPod is a Pod of this node.
func optOutPod(name string, s Shortcut, change ...func(*Pod)) *Pod {
	p := &Pod{Namespace: "shop", Name: name, UID: "uid-" + name, Node: "here", Shortcut: s}
	for _, c := range change {
		c(p)
	}
	return p
}

func optOutsOf(objects ...Object) *OptOuts {
	o := NewOptOuts("here")
	o.Apply(changes(objects...))
	return o
}

// The Pod's own annotation takes precedence over its Namespace's, and that over its RuntimeClass's;
// invalid values count as not set.
func TestOptOutPrecedence(t *testing.T) {
	all := []Shortcut{"", ShortcutOn, ShortcutOff, "maybe"}
	for _, pod := range all {
		for _, namespace := range all {
			for _, class := range all {
				var want Kind
				switch {
				case pod == ShortcutOn || pod == ShortcutOff:
					if pod == ShortcutOff {
						want = KindPod
					}
				case namespace == ShortcutOn || namespace == ShortcutOff:
					if namespace == ShortcutOff {
						want = KindNamespace
					}
				case class == ShortcutOff:
					want = KindRuntimeClass
				}
				o := optOutsOf(optOutPod("a", pod, func(p *Pod) { p.RuntimeClass = "c" }), &Namespace{Name: "shop", Shortcut: namespace}, &RuntimeClass{Name: "c", Shortcut: class},
					&Namespace{Name: "other", Shortcut: ShortcutOff}, &RuntimeClass{Shortcut: ShortcutOff})
				var got Kind
				for _, out := range o.Pods() {
					got = out.Because
				}
				if got != want {
					t.Errorf("pod %q, namespace %q, class %q: opted out by %q, want %q", pod, namespace, class, got, want)
				}
				mistakes := 0
				for _, s := range []Shortcut{pod, namespace, class} {
					if s == "maybe" {
						mistakes++
					}
				}
				if len(o.Problems()) != mistakes {
					t.Errorf("pod %q, namespace %q, class %q: %d problems, want %d: %v", pod, namespace, class, len(o.Problems()), mistakes, o.Problems())
				}
			}
		}
	}
}

func TestOptOutOfWhichPods(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*Pod)
		want    []OptOut
		problem string
	}{
		"running":          {func(*Pod) {}, []OptOut{{UID: "uid-a"}}, ""},
		"another node's":   {func(p *Pod) { p.Node = "there" }, nil, ""},
		"not scheduled":    {func(p *Pod) { p.Node = "" }, nil, ""},
		"finished":         {func(p *Pod) { p.Finished = true }, nil, ""},
		"being deleted":    {func(p *Pod) { p.Deleting = true }, []OptOut{{UID: "uid-a", Deleting: true}}, ""},
		"not started":      {func(p *Pod) { p.Pending = true }, []OptOut{{UID: "uid-a", Pending: true}}, ""},
		"static":           {func(p *Pod) { p.StaticUID = "0123abcd" }, []OptOut{{UID: "0123abcd"}}, ""},
		"on the host's":    {func(p *Pod) { p.HostNetwork = true }, nil, "host network"},
		"without a UID":    {func(p *Pod) { p.UID = "" }, nil, "no metadata.uid"},
		"with a host port": {func(p *Pod) { p.HostPorts = []PodPort{{HostPort: 1}} }, []OptOut{{UID: "uid-a"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := optOutPod("a", ShortcutOff, test.change)
			for i := range test.want {
				test.want[i].Pod, test.want[i].Because = p.Ref(), KindPod
			}
			o := optOutsOf(p)
			if diff := cmp.Diff(test.want, o.Pods(), compareValues); diff != "" {
				t.Error(diff)
			}
			if problems := o.Problems(); test.problem == "" && len(problems) > 0 ||
				test.problem != "" && (len(problems) != 1 || problems[0].Object != p.Ref() || !strings.Contains(problems[0].Problem.Message, test.problem)) {
				t.Errorf("problems %v, want %q", problems, test.problem)
			}
		})
	}
}

// A problem names the object whose annotation applies.
func TestOptOutProblemNamesWhoAsks(t *testing.T) {
	host := func(p *Pod) { p.HostNetwork, p.RuntimeClass = true, "c" }
	for want, objects := range map[string][]Object{
		"Namespace shop opts it out": {optOutPod("a", "", host), &Namespace{Name: "shop", Shortcut: ShortcutOff}},
		"RuntimeClass c opts it out": {optOutPod("a", "", host), &RuntimeClass{Name: "c", Shortcut: ShortcutOff}},
		"its annotation opts it out": {optOutPod("a", ShortcutOff, host)},
	} {
		if p := optOutsOf(objects...).Problems(); len(p) != 1 || !strings.HasPrefix(p[0].Problem.Message, want) {
			t.Errorf("%v, want %q", p, want)
		}
	}
}

// Only changes of the result are reported.
func TestOptOutChanges(t *testing.T) {
	o := NewOptOuts("here")
	pod, uid2 := optOutPod("a", ""), optOutPod("a", "", func(p *Pod) { p.UID = "uid-2" })
	for i, step := range []struct {
		change Change
		want   bool
		uids   string
	}{
		{Change{Ref: pod.Ref(), Object: pod}, false, ""},
		{Change{Ref: Ref{KindNamespace, "", "shop"}, Object: &Namespace{Name: "shop"}}, false, ""},
		{Change{Ref: Ref{KindNamespace, "", "shop"}, Object: &Namespace{Name: "shop", Shortcut: ShortcutOff}}, true, "uid-a"},
		{Change{Ref: Ref{KindService, "shop", "web"}, Object: &Service{Namespace: "shop", Name: "web"}}, false, "uid-a"},
		{Change{Ref: pod.Ref(), Object: uid2}, true, "uid-2"},
		{gone(&Namespace{Name: "shop"}), true, ""},
		{Change{Ref: pod.Ref(), Object: optOutPod("a", ShortcutOff)}, true, "uid-a"},
		{gone(pod), true, ""},
		{gone(pod), false, ""},
	} {
		changed := o.Apply([]Change{step.change})
		uids := ""
		for _, out := range o.Pods() {
			uids += out.UID
		}
		if changed != step.want || uids != step.uids {
			t.Errorf("step %d: changed %v, %q have opted out; want %v, %q", i, changed, uids, step.want, step.uids)
		}
	}
}

// The result depends on the remaining objects, not on their order.
func TestOptOutInAnyOrder(t *testing.T) {
	values := []Shortcut{"", ShortcutOn, ShortcutOff, "x"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		state, o := map[Ref]Object{}, NewOptOuts("here")
		for range 40 {
			v := values[r.IntN(len(values))]
			var object Object
			switch r.IntN(3) {
			case 0:
				object = optOutPod(string(rune('a'+r.IntN(3))), v, func(p *Pod) {
					p.RuntimeClass, p.HostNetwork, p.Node = []string{"", "c"}[r.IntN(2)], r.IntN(5) == 0, []string{"here", "there"}[r.IntN(2)]
				})
			case 1:
				object = &Namespace{Name: "shop", Shortcut: v}
			default:
				object = &RuntimeClass{Name: "c", Shortcut: v}
			}
			if r.IntN(4) == 0 {
				delete(state, object.Ref())
				o.Apply([]Change{gone(object)})
			} else {
				state[object.Ref()] = object
				o.Apply([]Change{{Ref: object.Ref(), Object: object}})
			}
		}
		var objects []Object
		for _, object := range state {
			objects = append(objects, object)
		}
		fresh := optOutsOf(objects...)
		if diff := cmp.Diff(fresh.Pods(), o.Pods(), compareValues) + cmp.Diff(fresh.Problems(), o.Problems()); diff != "" {
			t.Fatalf("of %v:\n%s", objects, diff)
		}
	}
}

func TestConvertShortcut(t *testing.T) {
	got, err := convert(t, `
metadata: {namespace: kube-system, name: etcd-here, uid: mirror, annotations: {beeline.io/socket-shortcut: "off",
  kubernetes.io/config.mirror: 0123abcd, kubernetes.io/config.hash: 0123abcd, kubernetes.io/config.source: file},
  ownerReferences: [{apiVersion: v1, kind: Node, name: here, uid: n, controller: true}]}
spec: {nodeName: here, runtimeClassName: careful}
`, ConvertPod)
	checkErrors(t, err)
	want := &Pod{Namespace: "kube-system", Name: "etcd-here", UID: "mirror", StaticUID: "0123abcd", Node: "here", RuntimeClass: "careful", Shortcut: ShortcutOff}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Error(diff)
	}
	// Anyone can write the hash annotation, so a Pod must not use it to name another pod from the API
	// server.
	for _, metadata := range []string{
		`annotations: {kubernetes.io/config.hash: 0123abcd}, ownerReferences: [{kind: Node, name: here}]`,
		`annotations: {kubernetes.io/config.hash: 0123abcd, kubernetes.io/config.mirror: x}`,
		`annotations: {kubernetes.io/config.hash: 0123abcd, kubernetes.io/config.mirror: x}, ownerReferences: [{kind: Node, name: there}]`,
		`annotations: {kubernetes.io/config.hash: 01-23-ab, kubernetes.io/config.mirror: x}, ownerReferences: [{kind: Node, name: here}]`,
		`annotations: {kubernetes.io/config.hash: 01_23_ab, kubernetes.io/config.mirror: x}, ownerReferences: [{kind: Node, name: here}]`,
	} {
		got, err = convert(t, `{metadata: {name: a, uid: u, `+metadata+`}, spec: {nodeName: here}}`, ConvertPod)
		checkErrors(t, err)
		if got.StaticUID != "" {
			t.Errorf("%s: %+v is no mirror pod", metadata, got)
		}
	}
	for value, want := range map[string]Shortcut{
		"on": ShortcutOn, "off": ShortcutOff, "Off": "Off", "": " ", strings.Repeat("x", 1000): Shortcut(strings.Repeat("x", 64)),
	} {
		in := map[string]string{AnnotationSocketShortcut: value}
		n, class := new(corev1.Namespace), new(nodev1.RuntimeClass)
		n.Name, n.Annotations, class.Name, class.Annotations = "n", in, "c", in
		if got := must(ConvertNamespace(n)); !reflect.DeepEqual(*got, Namespace{Name: "n", Shortcut: want}) {
			t.Errorf("%q is %+v", value, got)
		}
		if got := must(ConvertRuntimeClass(class)); !reflect.DeepEqual(*got, RuntimeClass{Name: "c", Shortcut: want}) {
			t.Errorf("%q is %+v", value, got)
		}
		if wrong := want.problem() != ""; wrong != (want != ShortcutOn && want != ShortcutOff) {
			t.Errorf("%q: problem %q", value, want.problem())
		}
	}
}
