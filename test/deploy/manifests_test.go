// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// find returns the object of a kind and name as a typed one.
func find[T any](t *testing.T, all []*unstructured.Unstructured, kind, name string) (object T) {
	t.Helper()
	for _, o := range all {
		if o.GetKind() == kind && o.GetName() == name {
			text, err := json.Marshal(o.Object)
			must(t, err)
			must(t, json.Unmarshal(text, &object))
			return object
		}
	}
	t.Fatalf("deploy/kubernetes has no %s %s", kind, name)
	return object
}

// An overlay of kustomize that sets the image and the address gives what `make manifests` prints.
func TestKustomizationIsTheSame(t *testing.T) {
	files := filesys.MakeFsInMemory()
	for _, path := range kustomizeFiles(t, "deploy/kubernetes") {
		text := read(t, path)
		if filepath.Base(path) == "kustomization.yaml" {
			text = bytes.ReplaceAll(text, []byte("newName: beeline.invalid/beeline"), []byte("newName: registry.test:5000/team/beeline"))
			text = bytes.ReplaceAll(text, []byte("newTag: unset"), []byte("newTag: v1"))
			text = bytes.ReplaceAll(text, []byte("value: api-server.invalid"), []byte("value: fd00::1"))
			text = bytes.ReplaceAll(text, []byte(`value: "6443"`), []byte(`value: "443"`))
		}
		must(t, files.WriteFile(filepath.Join("/base", filepath.Base(path)), text))
	}
	wantSame(t, manifests(t, testImage, "[fd00::1]:443"), kustomize(t, files, "/base"))
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

// Arguments that would change the meaning of the manifests, or are missing, are refused.
func TestManifestsNeedArguments(t *testing.T) {
	for _, arguments := range [][]string{{}, {"image"}, {"", "192.0.2.1"}, {"image", ""}, {"im|age", "192.0.2.1"}, {"image", "192.0.2.1:x"}, {"image", "a\nb: c"}, {"image", "10.96.0.1"}, {"image", "10.96.0.1:443"}, {"image", "kubernetes.default.svc"}, {"image", "10.0.0.1:443"}, {"--hoststack", ""}, {"--hoststack", "im|age"}, {"--hoststack", "image", "192.0.2.1"}} {
		out, err := exec.Command(sources(t, "scripts/manifests"), arguments...).Output()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 || len(out) > 0 {
			t.Errorf("%q: %v, and %d bytes of output", arguments, err, len(out))
		}
	}
}
