// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v4"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/util/suggest"
)

// placed is an object and the line where it starts.
type placed struct {
	object service.Object
	line   int
}

// kind is how objects of one kind are read.
type kind struct {
	group, version string
	namespaced     bool
	// read returns a valid object only if d has no error.
	read func(d *decoder, n *yaml.Node, namespaced bool) service.Object
}

func (k kind) apiVersion() string { return strings.TrimPrefix(k.group+"/"+k.version, "/") }

// kinds are the kinds that determine where Service traffic goes.
var kinds = map[service.Kind]kind{
	service.KindService: {"", "v1", true,
		reader(checkService, defaultService, service.ConvertService)},
	service.KindEndpointSlice: {"discovery.k8s.io", "v1", true,
		reader(checkEndpointSlice, defaultEndpointSlice, service.ConvertEndpointSlice)},
	service.KindNode: {"", "v1", false,
		reader(checkNode, nil, service.ConvertNode)},
	service.KindPod: {"", "v1", true,
		reader(checkPod, nil, service.ConvertPod)},
	service.KindServiceCIDR: {"networking.k8s.io", "v1", false,
		reader(checkServiceCIDR, nil, service.ConvertServiceCIDR)},
	service.KindNamespace: {"", "v1", false,
		reader(checkNamespace, nil, service.ConvertNamespace)},
	service.KindRuntimeClass: {"node.k8s.io", "v1", false,
		reader(checkRuntimeClass, nil, service.ConvertRuntimeClass)},
}

// reader combines the steps that convert a tree to an object of one kind.
func reader[In any, Out service.Object](
	check, setDefaults func(*complaints, *In), convert func(*In) (Out, error),
) func(*decoder, *yaml.Node, bool) service.Object {
	return func(d *decoder, n *yaml.Node, namespaced bool) service.Object {
		var in In
		d.decode(n, &in)
		if d.known("") {
			return nil // decoding was aborted
		}
		if d.noAnnotations {
			dropAnnotations(&in)
		}
		checkMeta(d.complaints, any(&in).(metav1.Object), service.Kind(text(n, "kind")), namespaced)
		// The converter runs last: the first complaint about each field is kept.
		check(d.complaints, &in)
		if setDefaults != nil {
			setDefaults(d.complaints, &in)
		}
		out, err := convert(&in)
		d.addConverted(err)
		return out
	}
}

// dropAnnotations removes the annotations that service.WithoutAnnotations ignores.
func dropAnnotations(object any) {
	switch o := object.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Pod:
		maps.DeleteFunc(o.(metav1.Object).GetAnnotations(), func(name, _ string) bool { return strings.HasPrefix(name, "beeline.io/") })
	}
}

// content is the content of one document.
type content struct {
	objects  []placed
	problems source.Problems
	skipped  []skipped
}

// skipped is an object of a kind that is not read.
type skipped struct {
	kind string
	line int
}

// treeReader reads the objects in the trees of one file.
type treeReader struct {
	file string
	left *atomic.Int64 // number of values that aliases may still repeat
	// noAnnotations is that of limits.
	noAnnotations bool
	// nesting of aliases around the current tree
	aliases int
	content
}

// read reads one object, or a List of objects.
func (r *treeReader) read(n *yaml.Node, depth int) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
		r.aliases++
		defer func() { r.aliases-- }()
	}
	if r.aliases > 0 {
		if left := r.left.Add(-1); left == -1 {
			r.problem(n.Line, "", "%s", tooManyAliases)
		} else if left < 0 {
			return
		}
	}
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.problem(n.Line, "", "want a Kubernetes object, have %s", describeNode(n))
		return
	}
	apiVersion, name := text(n, "apiVersion"), service.Kind(text(n, "kind"))
	switch {
	case name == "":
		r.problem(n.Line, "", "kind: missing; write the kind of the object, as in \"kind: Service\"")
		return
	case apiVersion == "":
		r.problem(n.Line, string(name), "apiVersion: missing; write the API version of the object, as in \"apiVersion: v1\"")
		return
	}
	if name == "List" && apiVersion == "v1" || isTypedList(name, apiVersion) {
		r.readList(n, depth)
		return
	}
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group = ""
	}
	k, known := kinds[name]
	meant := meantKind(name, group)
	switch {
	case known && apiVersion == k.apiVersion():
		r.readObject(n, k)
	case known && isKubernetesGroup(group):
		r.problem(lineOf(n, "apiVersion"), refOf(n, k).String(), "apiVersion: %s is not read; write %s", apiVersion, k.apiVersion())
	case meant != "":
		k := kinds[meant]
		r.problem(n.Line, kindName(string(name), group), "kind %s of %s is not read; write kind: %s and apiVersion: %s", name, apiVersion, meant, k.apiVersion())
	default:
		r.skipped = append(r.skipped, skipped{kindName(string(name), group), n.Line})
	}
}

// meantKind returns the kind that a misspelled kind or group probably means, or "". Silently skipping such an
// object would lose it. A kind in another project's group is no mistake.
func meantKind(name service.Kind, group string) service.Kind {
	if k, known := kinds[name]; known && k.group != "" && suggest.Nearest(group, []string{k.group}) != "" {
		return name
	}
	var names []string
	for kind, k := range kinds {
		if k.group == group {
			names = append(names, string(kind))
		}
	}
	return service.Kind(suggest.Nearest(string(name), names))
}

// isKubernetesGroup distinguishes a misspelled apiVersion from another project's kind of the same name, such as
// Knative's Service.
func isKubernetesGroup(group string) bool {
	for _, k := range kinds {
		if group == k.group {
			return true
		}
	}
	return false
}

func kindName(name, group string) string {
	if group == "" {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, group)
}

func (r *treeReader) readObject(n *yaml.Node, k kind) {
	d := &decoder{complaints: new(complaints), left: r.left, aliases: r.aliases, noAnnotations: r.noAnnotations}
	object := k.read(d, n, k.namespaced)
	for _, c := range d.list {
		p := source.Problem{File: r.file, Line: c.line, Object: refOf(n, k).String(), Reason: c.reason, Warning: c.warning}
		if p.Line == 0 {
			p.Line = lineOf(n, c.path)
		}
		if c.path != "" {
			p.Reason = c.path + ": " + c.reason
		}
		r.problems = append(r.problems, p)
	}
	if d.ok() {
		r.objects = append(r.objects, placed{object, n.Line})
	}
}

// isTypedList reports whether a kind is a list that the API server returns, such as ServiceList.
func isTypedList(name service.Kind, apiVersion string) bool {
	item, isList := strings.CutSuffix(string(name), "List")
	k, known := kinds[service.Kind(item)]
	return isList && known && apiVersion == k.apiVersion()
}

// readList reads the items of a v1 List, as written by "kubectl get -o yaml", or of a typed list, whose items
// need no kind and apiVersion.
func (r *treeReader) readList(n *yaml.Node, depth int) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch name := n.Content[i]; name.Value {
		case "apiVersion", "kind", "metadata", "items":
		default:
			r.problem(name.Line, "List", "%s: %s", name.Value, unknownField)
		}
	}
	items := child(n, "items")
	switch {
	case depth >= 3:
		r.problem(n.Line, "List", "Lists are nested more than 3 levels deep; put the objects into one List")
		return
	case items == nil || isNull(items):
		return
	case items.Kind != yaml.SequenceNode:
		r.problem(lineOf(n, "items"), "List", "items: want a list, have %s", describeNode(items))
		return
	}
	typed, _ := strings.CutSuffix(text(n, "kind"), "List")
	for _, item := range items.Content {
		if typed != "" && item.Kind == yaml.MappingNode && child(item, "kind") == nil && child(item, "apiVersion") == nil {
			item.Content = append(item.Content, scalar("kind", item.Line), scalar(typed, item.Line),
				scalar("apiVersion", item.Line), scalar(text(n, "apiVersion"), item.Line))
		}
		r.read(item, depth+1)
		if r.left.Load() < 0 {
			return // reported where the limit was exceeded
		}
	}
}

func scalar(value string, line int) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value, Line: line}
}

func (r *treeReader) problem(line int, object, format string, args ...any) {
	r.problems = append(r.problems, source.Problem{File: r.file, Line: line, Object: object, Reason: fmt.Sprintf(format, args...)})
}

// refOf returns the Ref that a tree is meant to have.
func refOf(n *yaml.Node, k kind) service.Ref {
	metadata := child(n, "metadata")
	ref := service.Ref{Kind: service.Kind(text(n, "kind")), Name: text(metadata, "name")}
	if ref.Name == "" {
		ref.Name = "without a name"
	} else if k.namespaced {
		if ref.Namespace = text(metadata, "namespace"); ref.Namespace == "" {
			ref.Namespace = metav1.NamespaceDefault
		}
	}
	return ref
}
