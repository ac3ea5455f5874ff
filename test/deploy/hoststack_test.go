// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
)

// Namespaces of the tests: one has the label, and only admits pods of Pod Security's level "restricted".
const (
	stacked   = "stacked"
	unstacked = "unstacked"
)

const (
	libraryInPods  = "/opt/beeline/libbeeline_hoststack.so"
	labelHostStack = "beeline.io/hoststack"
)

// hostStack: the policy is applied without warnings, and adds what docs/operate/hoststack.md says to the pods that
// it names.
func (s *server) hostStack(t *testing.T) {
	s.applyHostStack(t)
	s.namespace(t, stacked, map[string]string{labelHostStack: "on", "pod-security.kubernetes.io/enforce": "restricted"})
	s.namespace(t, unstacked, nil)
	s.wantInitContainers(t, 1)
	t.Run("each container gets it", s.hostStackAdded)
	t.Run("some pods do not", s.hostStackLeft)
	t.Run("pods that exist do not", s.hostStackUpdated)
	t.Run("Guaranteed pods remain so", s.hostStackGuaranteed)
	t.Run("injected proxies get it", s.hostStackInjected)
	if warnings := s.warnings.take(); len(warnings) > 0 {
		t.Errorf("the API server warns: %q", warnings)
	}
	t.Run("a mistaken label is warned of", s.hostStackMistaken)
	t.Run("a fault of the template refuses no pod", s.hostStackFaulty)
}

// wantInitContainers waits until the API server has given a pod so many init containers: it follows changes of a policy
// and its parameter after a moment.
func (s *server) wantInitContainers(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("a pod gets %d init containers", want), func() error {
		pod, err := s.admit(t, stacked, plainPod())
		if err == nil && len(pod.Spec.InitContainers) != want {
			err = fmt.Errorf("it has %d", len(pod.Spec.InitContainers))
		}
		return err
	})
}

// applyHostStack applies build/beeline-hoststack.yaml. The API server compiles the policy's expressions.
func (s *server) applyHostStack(t *testing.T) {
	t.Helper()
	for _, dryRun := range []bool{true, false} {
		for _, o := range hostStackManifests(t, testImage) {
			if _, err := s.apply(t.Context(), o, dryRun); err != nil {
				t.Errorf("%s %s, dry run %t: %v", o.GetKind(), o.GetName(), dryRun, err)
			}
		}
	}
}

func (s *server) namespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	o := newObject("v1", "Namespace", name)
	o.SetNamespace("")
	o.SetLabels(labels)
	_, err := s.apply(t.Context(), o, false)
	must(t, err)
}

// plainPod is a pod that Pod Security's level "restricted" admits.
func plainPod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(1000)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container("plain")},
		},
	}
}

func container(name string, env ...corev1.EnvVar) corev1.Container {
	return corev1.Container{
		Name: name, Image: "registry.test/" + name, Env: env,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// admit is the pod as the API server would store it.
func (s *server) admit(t *testing.T, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	return s.createPod(t, namespace, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func (s *server) createPod(t *testing.T, namespace string, pod *corev1.Pod, options metav1.CreateOptions) (*corev1.Pod, error) {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	must(t, err)
	o, err := s.pods(namespace).Create(t.Context(), &unstructured.Unstructured{Object: object}, options)
	if err != nil {
		return nil, err
	}
	return typedPod(t, o), nil
}

func (s *server) pods(namespace string) dynamic.ResourceInterface {
	return s.client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace)
}

func typedPod(t *testing.T, o *unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, pod))
	return pod
}

// hostStackAdded: nothing but the documented parts is added, to containers and native sidecars. What a container
// has set wins, and its own LD_PRELOAD remains first.
func (s *server) hostStackAdded(t *testing.T) {
	pod := plainPod()
	pod.Annotations = map[string]string{labelHostStack + "-ring": "131072", labelHostStack + "-sessions": "64"}
	sidecar := container("sidecar", corev1.EnvVar{Name: "BEELINE_HOSTSTACK_INCLUDE", Value: "127.0.0.1:80"})
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	pod.Spec.InitContainers = []corev1.Container{container("prepare"), sidecar}
	opaque := corev1.EnvVar{Name: "LD_PRELOAD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	pod.Spec.Containers = append(pod.Spec.Containers, container("allocator", corev1.EnvVar{Name: "LD_PRELOAD", Value: "libjemalloc.so.2"}), container("opaque", opaque))
	got, err := s.admit(t, stacked, pod)
	must(t, err)

	want, err := s.admit(t, unstacked, pod)
	must(t, err)
	template := s.hostStackTemplate(t)
	want.Spec.Volumes = append(want.Spec.Volumes, template.Volumes...)
	mounts := template.Containers[0].VolumeMounts
	include := corev1.EnvVar{Name: "BEELINE_HOSTSTACK_INCLUDE", Value: "127.0.0.1:15001,[::1]:15001"}
	annotated := []corev1.EnvVar{{Name: "BEELINE_HOSTSTACK_RING", Value: "131072"}, {Name: "BEELINE_HOSTSTACK_SESSIONS", Value: "64"}}
	preload := corev1.EnvVar{Name: "LD_PRELOAD", Value: libraryInPods}
	for c, env := range map[*corev1.Container][]corev1.EnvVar{
		&want.Spec.InitContainers[1]: append(slices.Concat(sidecar.Env, annotated), preload),
		&want.Spec.Containers[0]:     append(slices.Clone(annotated), preload, include),
		&want.Spec.Containers[1]:     append([]corev1.EnvVar{{Name: "LD_PRELOAD", Value: "libjemalloc.so.2:" + libraryInPods}}, append(slices.Clone(annotated), include)...),
	} {
		c.Env, c.VolumeMounts = env, append(c.VolumeMounts, mounts...)
	}
	want.Spec.InitContainers = append([]corev1.Container{template.InitContainers[0]}, want.Spec.InitContainers...)
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("what is wanted (-), and the pod (+):\n%s", diff)
	}
}

// hostStackTemplate is the PodTemplate with the API server's defaults.
func (s *server) hostStackTemplate(t *testing.T) *corev1.PodSpec {
	t.Helper()
	o, err := s.resource(newObject("v1", "PodTemplate", "beeline-hoststack")).Get(t.Context(), "beeline-hoststack", metav1.GetOptions{})
	must(t, err)
	template := &corev1.PodTemplate{}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, template))
	return &template.Template.Spec
}

// hostStackLeft: which pods are selected, and which are not.
func (s *server) hostStackLeft(t *testing.T) {
	for _, c := range []struct {
		what, namespace string
		change          func(*corev1.Pod)
		added           bool
	}{
		{"a pod without the label", unstacked, func(*corev1.Pod) {}, false},
		{"a pod with the label", unstacked, func(p *corev1.Pod) {}, true},
		{"a pod with the label, in a namespace with it", stacked, func(p *corev1.Pod) {}, true},
		{"a pod that opts out", stacked, func(p *corev1.Pod) { p.Labels[labelHostStack] = "off" }, false},
		{"a pod on the host's network", unstacked, func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		{"a pod for Windows by its os", unstacked, func(p *corev1.Pod) {
			p.Spec.OS, p.Spec.SecurityContext = &corev1.PodOS{Name: corev1.Windows}, nil
			p.Spec.Containers[0].SecurityContext = nil
		}, false},
		{"a pod for Windows by its selector", unstacked, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} }, false},
		{"the mirror of a static pod", unstacked, func(p *corev1.Pod) {
			p.Annotations[corev1.MirrorPodAnnotationKey], p.Spec.NodeName = "hash", "node-a"
		}, false},
	} {
		pod := plainPod()
		if c.what != "a pod without the label" {
			pod.Labels[labelHostStack] = "on"
		}
		c.change(pod)
		got, err := s.admit(t, c.namespace, pod)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if added := len(got.Spec.InitContainers)+len(got.Spec.Volumes)+len(got.Spec.Containers[0].Env) > 0; added != c.added {
			t.Errorf("%s: has parts of the host stack: %t, want %t", c.what, added, c.added)
		}
	}
}

// hostStackUpdated: a pod that exists is not changed, and so its labels can be.
func (s *server) hostStackUpdated(t *testing.T) {
	pod := plainPod()
	pod.Name = "stays"
	before, err := s.createPod(t, unstacked, pod, metav1.CreateOptions{})
	must(t, err)
	o, err := s.pods(unstacked).Patch(t.Context(), before.Name, "application/merge-patch+json",
		[]byte(fmt.Sprintf(`{"metadata": {"labels": {%q: "on"}}}`, labelHostStack)), metav1.PatchOptions{})
	must(t, err)
	if diff := cmp.Diff(before.Spec, typedPod(t, o).Spec); diff != "" {
		t.Errorf("the label changes the pod (+):\n%s", diff)
	}
}

// hostStackGuaranteed: the class of a pod whose containers have limits does not change.
func (s *server) hostStackGuaranteed(t *testing.T) {
	for want, limits := range map[corev1.PodQOSClass]corev1.ResourceList{
		corev1.PodQOSGuaranteed: {corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		corev1.PodQOSBurstable:  {corev1.ResourceCPU: resource.MustParse("1")},
	} {
		pod := plainPod()
		pod.Spec.Containers[0].Resources.Limits = limits
		got, err := s.admit(t, stacked, pod)
		must(t, err)
		if got.Status.QOSClass != want {
			t.Errorf("a pod with the limits %v is %s, want %s", limits, got.Status.QOSClass, want)
		}
		requests := got.Spec.InitContainers[0].Resources.Requests
		if cpu := requests.Cpu().String(); cpu != map[corev1.PodQOSClass]string{corev1.PodQOSGuaranteed: "100m", corev1.PodQOSBurstable: "10m"}[want] {
			t.Errorf("%s: the init container requests %s", want, cpu)
		}
	}
}

// hostStackInjected: what a webhook adds after the policy gets the library, and a native sidecar that the webhook
// puts first starts after the library is there.
func (s *server) hostStackInjected(t *testing.T) {
	sidecar, proxy := container("sidecar"), container("proxy")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/spec/initContainers/0", "value": sidecar},
		{"op": "add", "path": "/spec/containers/-", "value": proxy},
	})
	must(t, err)
	s.injector(t, unstacked, patch)
	pod := plainPod()
	pod.Labels[labelHostStack] = "on"
	eventually(t, "a webhook injects a proxy", func() error {
		got, err := s.admit(t, unstacked, pod)
		if err != nil {
			return err
		}
		var names []string
		for _, c := range append(got.Spec.InitContainers, got.Spec.Containers...) {
			names = append(names, fmt.Sprintf("%s %t", c.Name, slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
				return e.Name == "LD_PRELOAD" && e.Value == libraryInPods
			})))
		}
		if want := []string{"beeline-hoststack false", "sidecar true", "plain true", "proxy true"}; !slices.Equal(names, want) {
			return fmt.Errorf("containers, and whether they get the library: %v, want %v", names, want)
		}
		return nil
	})
}

// hostStackMistaken: who writes a value that has no effect learns it from the API server.
func (s *server) hostStackMistaken(t *testing.T) {
	for what, write := range map[string]func(){
		"Namespace": func() { s.namespace(t, "mistaken", map[string]string{labelHostStack: "enabled"}) },
		"Pod": func() {
			pod := plainPod()
			pod.Labels[labelHostStack] = "enabled"
			_, err := s.admit(t, unstacked, pod)
			must(t, err)
		},
	} {
		eventually(t, "a warning of the label of a "+what, func() error {
			write()
			if warnings := s.warnings.take(); len(warnings) != 1 || !strings.Contains(warnings[0], `value "enabled": write on or off`) {
				return fmt.Errorf("the API server warns: %q", warnings)
			}
			return nil
		})
	}
}

// hostStackFaulty: with a PodTemplate for which an expression fails, and without one, pods are created as they are.
func (s *server) hostStackFaulty(t *testing.T) {
	const name = "beeline-hoststack"
	templates := s.resource(newObject("v1", "PodTemplate", name))
	_, err := templates.Patch(t.Context(), name, "application/json-patch+json",
		[]byte(`[{"op": "remove", "path": "/template/spec/containers/0/env"}]`), metav1.PatchOptions{})
	must(t, err)
	s.wantInitContainers(t, 0)
	must(t, templates.Delete(t.Context(), name, metav1.DeleteOptions{}))
	s.applyHostStack(t)
	s.wantInitContainers(t, 1)
	must(t, templates.Delete(t.Context(), name, metav1.DeleteOptions{}))
	s.wantInitContainers(t, 0)
	s.applyHostStack(t)
	s.wantInitContainers(t, 1)
}
