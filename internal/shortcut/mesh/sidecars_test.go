// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/sidecar"
)

// injected is a pod with Istio's proxy.
func injected(change func(*corev1.Pod)) *corev1.Pod {
	uid := int64(1337)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{
			{Name: "web", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9000)}}}},
			{Name: "istio-proxy", SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}},
		}},
	}
	change(pod)
	return pod
}

func decideOne(t *testing.T, in *corev1.Pod) *Sidecars {
	t.Helper()
	p, err := service.ConvertPod(in)
	if err != nil {
		t.Fatal(err)
	}
	selector, err := labels.Parse("app=web")
	if err != nil {
		t.Fatal(err)
	}
	s := NewSidecars("n", selector)
	s.Apply([]service.Change{{Ref: p.Ref(), Object: p}})
	return s
}

func TestSidecarOfAnnotations(t *testing.T) {
	istioPorts := []uint16{15008, 15020, 15021, 15090}
	all := sidecar.Rules{IncludeOutbound: sidecar.Networks{All: true}, IncludeInboundPorts: sidecar.Ports{All: true}, ProbePorts: []uint16{8080, 9000}, ExcludeInboundPorts: istioPorts}
	for annotation, change := range map[string]func(*sidecar.Rules){
		"":                             func(*sidecar.Rules) {},
		"excludeOutboundPorts=80, 443": func(s *sidecar.Rules) { s.ExcludeOutboundPorts = []uint16{80, 443} },
		"includeOutboundPorts=80":      func(s *sidecar.Rules) { s.IncludeOutboundPorts = []uint16{80} },
		"excludeInboundPorts=22":       func(s *sidecar.Rules) { s.ExcludeInboundPorts = append([]uint16{22}, istioPorts...) },
		"includeInboundPorts=8080":     func(s *sidecar.Rules) { s.IncludeInboundPorts = sidecar.Ports{List: []uint16{8080}} },
		"includeInboundPorts=":         func(s *sidecar.Rules) { s.IncludeInboundPorts = sidecar.Ports{} },
		"includeInboundPorts=*":        func(*sidecar.Rules) {},
		"includeOutboundIPRanges=10.0.0.1/8,fd00::/8": func(s *sidecar.Rules) {
			s.IncludeOutbound = sidecar.Networks{List: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}
		},
		"includeOutboundIPRanges=":                         func(s *sidecar.Rules) { s.IncludeOutbound = sidecar.Networks{} },
		"excludeOutboundIPRanges=192.168.0.0/16":           func(s *sidecar.Rules) { s.ExcludeOutbound = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")} },
		"excludeOutboundPorts=http (invalid)":              func(*sidecar.Rules) {},
		"excludeInterfaces=net1, vnet+":                    func(s *sidecar.Rules) { s.ExcludeInterfaces = []string{"net1", "vnet+"} },
		"excludeInterfaces=a-name-of-16-ch+ (invalid)":     func(*sidecar.Rules) {},
		"excludeInterfaces=net 1 (invalid)":                func(*sidecar.Rules) {},
		"excludeInterfaces=!eth0 (invalid)":                func(*sidecar.Rules) {},
		"kubevirtInterfaces=vnet0,k6t+":                    func(s *sidecar.Rules) { s.RerouteInterfaces = []string{"vnet0", "k6t+"} },
		"kubevirtInterfaces=a b (invalid)":                 func(*sidecar.Rules) {},
		"kubevirtInterfaces=":                              func(*sidecar.Rules) {},
		"includeOutboundIPRanges=::ffff:1.0.0.0 (invalid)": func(*sidecar.Rules) {},
	} {
		value, invalid := strings.CutSuffix(annotation, " (invalid)")
		s := decideOne(t, injected(func(p *corev1.Pod) {
			if name, v, ok := strings.Cut(value, "="); ok {
				p.Annotations["traffic.sidecar.istio.io/"+name] = v
			}
		}))
		want := Sidecar{service.Ref{Kind: service.KindPod, Namespace: "shop", Name: "web"}, "u1", all}
		want.ProxyUID = ptrTo(uint32(1337))
		change(&want.Rules)
		if len(s.Pods()) != 1 || !reflect.DeepEqual(s.Pods()[0], want) {
			t.Errorf("%s:\n%+v, want\n%+v", annotation, s.Pods(), want)
		}
		if (len(s.Problems()) > 0) != invalid {
			t.Errorf("%s: problems %v", annotation, s.Problems())
		}
	}
}

// TestSidecarRerouted: of both annotations for virtual machines the newer one wins.
func TestSidecarRerouted(t *testing.T) {
	for value, want := range map[string]string{"vnet0": "[vnet0]", "": "[]", "a b": "[k6t-eth0]"} {
		s := decideOne(t, injected(func(p *corev1.Pod) {
			p.Annotations["istio.io/reroute-virtual-interfaces"] = value
			p.Annotations["traffic.sidecar.istio.io/kubevirtInterfaces"] = "k6t-eth0"
		}))
		if len(s.Pods()) != 1 || fmt.Sprint(s.Pods()[0].RerouteInterfaces) != want {
			t.Errorf("%q: pods %+v, want devices %s", value, s.Pods(), want)
		}
		if invalid := value == "a b"; (len(s.Problems()) > 0) != invalid || invalid && !strings.Contains(fmt.Sprint(s.Problems()), "annotation istio.io/reroute") {
			t.Errorf("%q: problems %v", value, s.Problems())
		}
	}
}

// The annotations of a pod are evaluated once, however often other pods change, and again when the pod has.
func TestSidecarIsEvaluatedOnce(t *testing.T) {
	change := func(p *corev1.Pod) { p.Annotations["traffic.sidecar.istio.io/"+"excludeOutboundPorts"] = "80,x" }
	s := decideOne(t, injected(change))
	other := func(name string) {
		p, err := service.ConvertPod(injected(func(p *corev1.Pod) { change(p); p.Name = name }))
		if err != nil {
			t.Fatal(err)
		}
		s.Apply([]service.Change{{Ref: p.Ref(), Object: p}})
	}
	first := &s.Pods()[0].ExcludeInboundPorts[0]
	other("other")
	if again := &s.Pods()[1].ExcludeInboundPorts[0]; again != first || len(s.Problems()) != 2 || len(s.evaluated) != 2 {
		t.Errorf("another evaluation: %v; problems %v, %d evaluations", again != first, s.Problems(), len(s.evaluated))
	}
	other("web")
	if again := &s.Pods()[1].ExcludeInboundPorts[0]; again == first || len(s.evaluated) != 2 {
		t.Errorf("no other evaluation of a pod that has changed; %d evaluations", len(s.evaluated))
	}
}

// A pod has a user namespace only if its spec says so: an application can make one at any time.
func TestSidecarUserNamespace(t *testing.T) {
	for _, hostUsers := range []*bool{nil, ptrTo(true), ptrTo(false)} {
		s := decideOne(t, injected(func(p *corev1.Pod) { p.Spec.HostUsers = hostUsers }))
		if want := hostUsers != nil && !*hostUsers; len(s.Pods()) != 1 || s.Pods()[0].UserNamespace != want {
			t.Errorf("%+v, want a user namespace: %v", s.Pods(), want)
		}
	}
}

func ptrTo[T any](v T) *T { return &v }

func TestSidecarLeftAlone(t *testing.T) {
	for want, change := range map[string]func(*corev1.Pod){
		"":             func(*corev1.Pod) {},
		"ambient":      func(p *corev1.Pod) { p.Labels["istio.io/dataplane-mode"] = "ambient" },
		"ambient mesh": func(p *corev1.Pod) { p.Annotations["ambient.istio.io/redirection"] = "enabled" },
		"inject":       func(p *corev1.Pod) { p.Labels["sidecar.istio.io/inject"] = "false" },
		"NONE":         func(p *corev1.Pod) { p.Annotations["sidecar.istio.io/interceptionMode"] = "NONE" },
		"ProxyConfig": func(p *corev1.Pod) {
			p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "ISTIO_META_INTERCEPTION_MODE", Value: "NONE"}}
		},
		"host network":    func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"no container":    func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
		"no metadata.uid": func(p *corev1.Pod) { p.UID = "" },
		"not an ambient: ": func(p *corev1.Pod) {
			p.Labels["istio.io/dataplane-mode"], p.Labels["sidecar.istio.io/inject"] = "ambient", "true"
		},
	} {
		s := decideOne(t, injected(change))
		if strings.HasSuffix(want, ": ") || want == "" {
			if len(s.Left()) != 0 || len(s.Pods()) != 1 {
				t.Errorf("%q: left alone: %v", want, s.Left())
			}
			continue
		}
		if len(s.Pods()) != 0 || len(s.Left()) != 1 || !strings.Contains(fmt.Sprint(s.Left()), want) {
			t.Errorf("left alone: %v, want %q", s.Left(), want)
		}
	}
}

// TestSidecarIsFound: native sidecars and proxies of other names; labels that do not match, finished pods and those of
// other nodes.
func TestSidecarIsFound(t *testing.T) {
	always, other := corev1.ContainerRestartPolicyAlways, int64(1001)
	native := decideOne(t, injected(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "istio-proxy", RestartPolicy: &always, SecurityContext: &corev1.SecurityContext{RunAsUser: &other, RunAsGroup: &other},
			Env: []corev1.EnvVar{{Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}}}}
		p.Spec.Containers = p.Spec.Containers[:1]
	}))
	if s := native.Pods(); len(s) != 1 || !s[0].Native || !s[0].DNS || *s[0].ProxyUID != 1001 || *s[0].ProxyGID != 1001 {
		t.Errorf("native sidecar: %+v", s)
	}
	once := decideOne(t, injected(func(p *corev1.Pod) {
		p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[1:], p.Spec.Containers[:1]
	}))
	if len(once.Pods()) != 0 {
		t.Errorf("an init container that ends is a proxy: %+v", once.Pods())
	}
	renamed := decideOne(t, injected(func(p *corev1.Pod) { p.Spec.Containers[1].Name = "envoy" }))
	if s := renamed.Pods(); len(s) != 1 || len(s[0].ExcludeInboundPorts) != 0 {
		t.Errorf("a proxy by its user: %+v", s)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"label":    func(p *corev1.Pod) { p.Labels["app"] = "db" },
		"node":     func(p *corev1.Pod) { p.Spec.NodeName = "m" },
		"finished": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
	} {
		if s := decideOne(t, injected(change)); len(s.Pods()) != 0 || len(s.Left()) != 0 {
			t.Errorf("%s: %+v, left %v", name, s.Pods(), s.Left())
		}
	}
}
