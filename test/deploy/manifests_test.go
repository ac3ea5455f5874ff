// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const testImage = "registry.test:5000/team/beeline:v1"

// manifests are the objects that `make manifests` prints.
func manifests(t *testing.T, image, apiServer string) []*unstructured.Unstructured {
	t.Helper()
	out, err := exec.Command(sources(t, "scripts/manifests"), image, apiServer).Output()
	must(t, err)
	return decode(t, out)
}

// hostStackManifests are the objects of build/beeline-hoststack.yaml.
func hostStackManifests(t *testing.T, image string) []*unstructured.Unstructured {
	t.Helper()
	out, err := exec.Command(sources(t, "scripts/manifests"), "--hoststack", image).Output()
	must(t, err)
	return decode(t, out)
}

func decode(t *testing.T, text []byte) (all []*unstructured.Unstructured) {
	t.Helper()
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := map[string]any{}
		err := documents.Decode(&object)
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		if len(object) > 0 {
			all = append(all, &unstructured.Unstructured{Object: object})
		}
	}
}

// find returns the object of a kind and name, without the hash of a ConfigMap's name, as a typed one.
func find[T any](t *testing.T, all []*unstructured.Unstructured, kind, name string) (object T) {
	t.Helper()
	for _, o := range all {
		parts := hashed.FindStringSubmatch(o.GetName())
		if o.GetKind() == kind && (o.GetName() == name || kind == "ConfigMap" && parts != nil && parts[1] == name) {
			text, err := json.Marshal(o.Object)
			must(t, err)
			must(t, json.Unmarshal(text, &object))
			return object
		}
	}
	t.Fatalf("deploy/kubernetes has no %s %s", kind, name)
	return object
}

// The DaemonSet is for nodes with a label that an administrator sets, or for all with Linux.
func TestManifestsSelectNodes(t *testing.T) {
	for nodes, want := range map[string]map[string]string{
		"":         {"kubernetes.io/os": "linux", "beeline": "true"},
		"labelled": {"kubernetes.io/os": "linux", "beeline": "true"},
		"all":      {"kubernetes.io/os": "linux"},
	} {
		out, err := exec.Command(sources(t, "scripts/manifests"), testImage, "192.0.2.1", nodes).Output()
		must(t, err)
		daemonSet := find[appsv1.DaemonSet](t, decode(t, out), "DaemonSet", "beeline")
		if diff := cmp.Diff(want, daemonSet.Spec.Template.Spec.NodeSelector); diff != "" {
			t.Errorf("NODES=%s:\n%s", nodes, diff)
		}
		if nodes == "all" && bytes.Contains(out, []byte(`beeline: "true"`)) {
			t.Errorf("NODES=all: the label is named:\n%s", out)
		}
	}
}

// An overlay of kustomize that sets the image and the address gives what `make manifests` prints.
func TestKustomizationIsTheSame(t *testing.T) {
	files := filesys.MakeFsInMemory()
	for _, path := range kustomizeFiles(t, "deploy/kubernetes") {
		text := read(t, path)
		if filepath.Base(path) == "kustomization.yaml" {
			text = bytes.ReplaceAll(text, []byte("newName: beeline.invalid/beeline"), []byte("newName: registry.test:5000/team/beeline"))
			text = bytes.ReplaceAll(text, []byte("newTag: unset"), []byte("newTag: v1"))
			text = bytes.ReplaceAll(text, []byte("HOST=api-server.invalid"), []byte("HOST=fd00::1"))
			text = bytes.ReplaceAll(text, []byte("PORT=6443"), []byte("PORT=443"))
		}
		must(t, files.WriteFile(filepath.Join("/base", filepath.Base(path)), text))
	}
	made, built := manifests(t, testImage, "[fd00::1]:443"), kustomize(t, files, "/base")
	for _, all := range [][]*unstructured.Unstructured{made, built} {
		removeHashes(t, all)
	}
	wantSame(t, made, built)
}

// hashed is the name of a ConfigMap with a hash of its contents.
var hashed = regexp.MustCompile(`^(beeline-settings|beeline-api-server)-[0-9a-z]{10}$`)

// removeHashes removes the hashes from the names of ConfigMaps, which kustomize computes in another way, and from the
// DaemonSet, which has to name exactly these.
func removeHashes(t *testing.T, all []*unstructured.Unstructured) {
	t.Helper()
	renamed := map[string]string{}
	for _, o := range all {
		if o.GetKind() != "ConfigMap" {
			continue
		}
		parts := hashed.FindStringSubmatch(o.GetName())
		if parts == nil {
			t.Fatalf("the ConfigMap %s has no hash in its name", o.GetName())
		}
		renamed[o.GetName()] = parts[1]
		o.SetName(parts[1])
	}
	for _, o := range all {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		text, err := json.Marshal(o.Object)
		must(t, err)
		for from, to := range renamed {
			if n := bytes.Count(text, []byte(from)); n != 1 {
				t.Errorf("the DaemonSet names the ConfigMap %s %d times", from, n)
			}
			text = bytes.ReplaceAll(text, []byte(from), []byte(to))
		}
		o.Object = nil
		must(t, json.Unmarshal(text, &o.Object))
	}
}

// Other settings give the ConfigMap another name, and the DaemonSet another template: changed settings reach a node
// with the DaemonSet's update and not by a restart of the agent.
func TestSettingsAreUpdates(t *testing.T) {
	names := func(apiServer string) (configs []string, template string) {
		all := manifests(t, testImage, apiServer)
		for _, o := range all {
			if o.GetKind() == "ConfigMap" {
				configs = append(configs, o.GetName())
			}
		}
		text, err := json.Marshal(find[appsv1.DaemonSet](t, all, "DaemonSet", "beeline").Spec.Template)
		must(t, err)
		return configs, string(text)
	}
	configs, template := names("192.0.2.1")
	if again, same := names("192.0.2.1"); !slices.Equal(configs, again) || template != same {
		t.Errorf("the same settings have other names: %v, %v", configs, again)
	}
	other, changed := names("192.0.2.2")
	if configs[0] == other[0] || configs[1] != other[1] || template == changed {
		t.Errorf("with another API server the ConfigMaps are %v, before %v", other, configs)
	}
}

// The component of an overlay has the overlay's image, as build/beeline-hoststack.yaml has it.
func TestKustomizeComponentIsTheSame(t *testing.T) {
	files := filesys.MakeFsInMemory()
	for _, path := range kustomizeFiles(t, "deploy/kubernetes/hoststack") {
		must(t, files.WriteFile(filepath.Join("/hoststack", filepath.Base(path)), read(t, path)))
	}
	must(t, files.WriteFile("/overlay/kustomization.yaml", []byte(`
components: [../hoststack]
images: [{name: beeline.invalid/beeline, newName: registry.test:5000/team/beeline, newTag: v1}]
`)))
	wantSame(t, hostStackManifests(t, testImage), kustomize(t, files, "/overlay"))
}

func kustomizeFiles(t *testing.T, folder string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(sources(t, folder), "*.yaml"))
	must(t, err)
	return all
}

func kustomize(t *testing.T, files filesys.FileSystem, folder string) []*unstructured.Unstructured {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, folder)
	must(t, err)
	text, err := built.AsYaml()
	must(t, err)
	return decode(t, text)
}

func wantSame(t *testing.T, want, got []*unstructured.Unstructured) {
	t.Helper()
	byName := func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetKind()+a.GetName()+a.GetNamespace(), b.GetKind()+b.GetName()+b.GetNamespace())
	}
	slices.SortFunc(got, byName)
	slices.SortFunc(want, byName)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("make manifests (-) and kustomize (+):\n%s", diff)
	}
}

// Arguments that would change the meaning of the manifests, or are missing, are refused. Of addresses the error says what
// to give instead.
func TestManifestsNeedArguments(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		says      string
	}{
		{nil, "give the image"}, {[]string{"image"}, "give the image"}, {[]string{"", "192.0.2.1"}, "give the image"}, {[]string{"image", ""}, "give the image"},
		{[]string{"im|age", "192.0.2.1"}, "not an image's name"},
		{[]string{"image", "192.0.2.1:x"}, "x is not a port from 1 to 65535"},
		{[]string{"image", "192.0.2.1:0"}, "0 is not a port from 1 to 65535"},
		{[]string{"image", "192.0.2.1:65536"}, "65536 is not a port from 1 to 65535"},
		{[]string{"image", "[2001:db8::1]:99999"}, "99999 is not a port from 1 to 65535"},
		{[]string{"image", "192.0.2.1:"}, " is not a port from 1 to 65535"},
		{[]string{"image", "192.0.2.256"}, "192.0.2.256 is not an IPv4 address"},
		{[]string{"image", "192.0.2"}, "192.0.2 is not an IPv4 address"},
		{[]string{"image", "a\nb: c"}, "is not an address"},
		{[]string{"image", "https://192.0.2.1:6443"}, "is a URL: give its address and port alone, API_SERVER=192.0.2.1:6443\n"},
		{[]string{"image", "https://api.example.org/path"}, "is a URL: give its address and port alone, API_SERVER=api.example.org:443\n"},
		{[]string{"image", "192.0.2.1:6443/"}, "is a URL: give its address and port alone, API_SERVER=192.0.2.1:6443\n"},
		{[]string{"image", "10.96.0.1"}, "is the Service `kubernetes`"}, {[]string{"image", "10.96.0.1:443"}, "is the Service `kubernetes`"},
		{[]string{"image", "kubernetes.default.svc"}, "is the Service `kubernetes`"}, {[]string{"image", "10.0.0.1:443"}, "is the Service `kubernetes`"},
		{[]string{"image", "192.0.2.1", "some"}, "NODES=some: give labelled"}, {[]string{"image", "192.0.2.1", "all", "x"}, "give the image"},
		{[]string{"--cleanup", "image"}, "give the image"}, {[]string{"--cleanup", "image", "10.96.0.1"}, "is the Service `kubernetes`"},
		{[]string{"--hoststack", ""}, "give the image"}, {[]string{"--hoststack", "im|age"}, "not an image's name"}, {[]string{"--hoststack", "image", "192.0.2.1"}, "give the image"},
	} {
		out, err := exec.Command(sources(t, "scripts/manifests"), test.arguments...).Output()
		exit := &exec.ExitError{}
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || len(out) > 0 || !strings.Contains(string(exit.Stderr), test.says) {
			t.Errorf("%q: %v, %d bytes of output and %q, want %q", test.arguments, err, len(out), exit.Stderr, test.says)
		}
	}
}

// `make manifests` refuses variables that it does not have: without NODES=all the manifests are for labelled nodes.
func TestManifestsVariables(t *testing.T) {
	folder := filepath.Dir(sources(t, "Makefile"))
	for variable, want := range map[string]string{"NODE=all": "no variable NODE: give IMAGE, API_SERVER or NODES", "NODES=some": "NODES=some: give labelled"} {
		out, err := exec.Command("make", "-C", folder, "--no-print-directory", "manifests", "IMAGE=image", "API_SERVER=192.0.2.1", variable).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("make manifests %s: %v, %s; want %q", variable, err, out, want)
		}
	}
}

// The ServiceMonitor finds the Service, that finds the DaemonSet's pods, and they serve the metrics at its port. Alerts
// and dashboard select the job and the instance that it sets.
func TestServiceMonitor(t *testing.T) {
	all := decode(t, read(t, sources(t, "deploy/prometheus/servicemonitor.yaml")))
	service := find[corev1.Service](t, all, "Service", "beeline-metrics")
	monitor := find[struct {
		Spec struct {
			Selector  metav1.LabelSelector
			Endpoints []struct {
				Port        string
				Relabelings []struct {
					SourceLabels             []string
					TargetLabel, Replacement string
				}
			}
		}
	}](t, all, "ServiceMonitor", "beeline")
	selects := func(selector map[string]string, set map[string]string) bool {
		return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(set))
	}
	pods := find[appsv1.DaemonSet](t, manifests(t, testImage, "192.0.2.1"), "DaemonSet", "beeline")
	if !selects(service.Spec.Selector, pods.Spec.Template.Labels) || pods.Namespace != service.Namespace {
		t.Errorf("the Service in %s selects %v, and pods of %s have %v", service.Namespace, service.Spec.Selector, pods.Namespace, pods.Spec.Template.Labels)
	}
	if !selects(monitor.Spec.Selector.MatchLabels, service.Labels) {
		t.Errorf("the ServiceMonitor selects %v, and the Service has %v", monitor.Spec.Selector.MatchLabels, service.Labels)
	}
	if len(monitor.Spec.Endpoints) != 1 || monitor.Spec.Endpoints[0].Port != service.Spec.Ports[0].Name || service.Spec.Ports[0].Port != metricsPort {
		t.Errorf("it scrapes %+v of the ports %+v, want %d", monitor.Spec.Endpoints, service.Spec.Ports, metricsPort)
	}
	set := map[string]string{}
	for _, r := range monitor.Spec.Endpoints[0].Relabelings {
		set[r.TargetLabel] = strings.Join(r.SourceLabels, ",") + r.Replacement
	}
	if want := map[string]string{"instance": "__meta_kubernetes_pod_node_name", "job": "beeline"}; !maps.Equal(set, want) {
		t.Errorf("it sets the labels %v, want %v", set, want)
	}
}

// metricsPort is that of --metrics-bind-address.
const metricsPort = 10249
