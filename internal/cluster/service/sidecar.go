// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"beeline.io/beeline/internal/report/condition"
)

// Istio's annotations and labels (istio.io/api/annotation, istio.io/api/label).
const (
	istioTraffic     = "traffic.sidecar.istio.io/"
	istioInject      = "sidecar.istio.io/inject"
	istioMode        = "sidecar.istio.io/interceptionMode"
	istioDataplane   = "istio.io/dataplane-mode"
	istioRedirection = "ambient.istio.io/redirection"
	istioProxy       = "istio-proxy" // the container
	istioReroute     = "istio.io/reroute-virtual-interfaces"

	// Variables of the proxy's container, which have what the resource ProxyConfig says.
	istioDNSCapture = "ISTIO_META_DNS_CAPTURE"
	istioIntercept  = "ISTIO_META_INTERCEPTION_MODE"
)

// istioPorts are those of Istio's proxy itself that other hosts connect to: HBONE, the merged metrics, health, Envoy's
// metrics.
var istioPorts = []uint16{15008, 15020, 15021, 15090}

// A PodProxy holds the fields of a v1 Pod that say whether and how its connections go through a proxy in the pod.
type PodProxy struct {
	Labels map[string]string
	// Found: a container is the proxy. Native: it is an init container that does not end (KEP-753).
	Found, Native, Istio bool
	// UID and GID are those of the proxy's container; nil: not set.
	UID, GID *uint32
	// OtherUIDs and OtherGIDs are those that the other containers that run beside it have set.
	OtherUIDs, OtherGIDs []uint32
	// Container is the id of its container, as the kubelet reports it, without the runtime's name; empty: not
	// reported yet.
	Container string
	DNS       bool // it captures DNS
	// UserNamespace: the pod has a user namespace (hostUsers: false).
	UserNamespace bool
	// Left is why the pod is left alone whatever its labels; empty: it is not.
	Left string
	// Traffic are Istio's annotations of included and excluded ports, networks and devices, without the prefix
	// istioTraffic.
	Traffic map[string]string
	// Probes are the ports of the containers that the kubelet probes.
	Probes []uint16
}

// defaultProxyUser is the user of Istio's proxies.
const defaultProxyUser = 1337

// podProxy extracts the PodProxy of a v1 Pod; nil if it has neither labels nor a proxy.
func podProxy(in *corev1.Pod) *PodProxy {
	p := &PodProxy{Labels: in.Labels, Left: leftToOthers(in), UserNamespace: in.Spec.HostUsers != nil && !*in.Spec.HostUsers}
	for i := range in.Spec.InitContainers {
		if c := &in.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.addContainer(in, c, true)
		}
	}
	for i := range in.Spec.Containers {
		p.addContainer(in, &in.Spec.Containers[i], false)
	}
	for name, value := range in.Annotations {
		if short, ok := strings.CutPrefix(name, istioTraffic); ok || name == istioReroute {
			if p.Traffic == nil {
				p.Traffic = map[string]string{}
			}
			p.Traffic[short] = value
		}
	}
	if !p.Found && len(p.Labels) == 0 {
		return nil
	}
	slices.Sort(p.Probes)
	p.Probes = slices.Compact(p.Probes)
	return p
}

// leftToOthers returns why no sidecar takes the pod's connections.
func leftToOthers(in *corev1.Pod) string {
	inject := cmp.Or(in.Labels[istioInject], in.Annotations[istioInject])
	switch {
	case in.Annotations[istioRedirection] == "enabled" || in.Labels[istioDataplane] == "ambient" && inject != "true":
		return "it is in Istio's ambient mesh, whose proxies are not in the pod"
	case inject == "false":
		return istioInject + " is \"false\""
	case in.Annotations[istioMode] == "NONE":
		return istioMode + " is NONE"
	}
	return ""
}

// addContainer notes a container that is the proxy, or the ports that the kubelet probes at another one.
func (p *PodProxy) addContainer(pod *corev1.Pod, c *corev1.Container, native bool) {
	uid, gid := userOf(pod, c)
	istio := c.Name == istioProxy
	if p.Found || !istio && (uid == nil || *uid != defaultProxyUser) {
		p.Probes = append(p.Probes, probedPorts(c)...)
		p.OtherUIDs, p.OtherGIDs = appendID(p.OtherUIDs, uid), appendID(p.OtherGIDs, gid)
		return
	}
	p.Found, p.Native, p.Istio, p.UID, p.GID = true, native, istio, uid, gid
	p.Container = containerID(pod, c.Name)
	p.DNS = hasVariable(c, istioDNSCapture, "true")
	if p.Left == "" && hasVariable(c, istioIntercept, "NONE") {
		p.Left = "its proxy has " + istioIntercept + "=NONE, as a ProxyConfig says"
	}
}

func appendID(all []uint32, id *uint32) []uint32 {
	if id == nil {
		return all
	}
	return append(all, *id)
}

// containerID returns the id that a container's runtime has given it; empty: it is not reported, or is none that can
// be part of a directory's name.
func containerID(pod *corev1.Pod, name string) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.Name == name && strings.Trim(id, "0123456789abcdef") == "" {
			return id
		}
	}
	return ""
}

func hasVariable(c *corev1.Container, name, value string) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name && e.Value == value })
}

// userOf returns the user and group of a container; nil where the image decides.
func userOf(pod *corev1.Pod, c *corev1.Container) (uid, gid *uint32) {
	if s := pod.Spec.SecurityContext; s != nil {
		uid, gid = userID(s.RunAsUser), userID(s.RunAsGroup)
	}
	if s := c.SecurityContext; s != nil {
		uid, gid = cmp.Or(userID(s.RunAsUser), uid), cmp.Or(userID(s.RunAsGroup), gid)
	}
	return uid, gid
}

func userID(id *int64) *uint32 {
	if id == nil || *id < 0 || *id > 1<<32-2 {
		return nil
	}
	short := uint32(*id)
	return &short
}

// probedPorts returns the ports at the pod's address that the kubelet connects to.
func probedPorts(c *corev1.Container) (all []uint16) {
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe == nil {
			continue
		}
		var port int
		switch {
		case probe.HTTPGet != nil && probe.HTTPGet.Host == "":
			port = portOf(c, probe.HTTPGet.Port)
		case probe.TCPSocket != nil && probe.TCPSocket.Host == "":
			port = portOf(c, probe.TCPSocket.Port)
		case probe.GRPC != nil:
			port = int(probe.GRPC.Port)
		}
		if port > 0 && port < 1<<16 {
			all = append(all, uint16(port))
		}
	}
	return all
}

// portOf returns a port by its number or its name in the container; 0 if it has no such port.
func portOf(c *corev1.Container, port intstr.IntOrString) int {
	if port.Type == intstr.Int {
		return port.IntValue()
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort)
		}
	}
	return 0
}

// Ports are TCP ports; All: every one.
type Ports struct {
	All  bool
	List []uint16
}

// Networks are IP networks; All: every one.
type Networks struct {
	All  bool
	List []netip.Prefix
}

// A Sidecar is a pod whose connections go through a proxy in it.
type Sidecar struct {
	Pod Ref
	// UID is the UID in the name of the pod's cgroup.
	UID string
	// ProxyUID and ProxyGID are the proxy's; nil: the default.
	ProxyUID, ProxyGID *uint32
	// OtherUIDs and OtherGIDs are those of applications, as far as they are set.
	OtherUIDs, OtherGIDs []uint32
	// ProxyContainer is the id of the proxy's container; empty: not known yet.
	ProxyContainer string
	Native, DNS    bool
	// UserNamespace: the ids are those of the pod's user namespace.
	UserNamespace bool
	// What goes to the proxy, and what of this does not. Excluded networks win over included ports, and
	// excluded ports over both.
	IncludeOutboundPorts                      []uint16
	IncludeOutbound                           Networks
	ExcludeOutbound                           []netip.Prefix
	ExcludeOutboundPorts, ExcludeInboundPorts []uint16
	IncludeInboundPorts                       Ports
	// ExcludeInterfaces are names of devices by which connections do not go to the proxy, in either direction; one
	// that ends in "+" is the beginning of names.
	ExcludeInterfaces []string
	// RerouteInterfaces are those behind which virtual machines are: what these send goes to the proxy.
	RerouteInterfaces []string
	// ProbePorts do not if the connection comes from the node.
	ProbePorts []uint16
}

// A SidecarLeft is a pod that the selector matches, and that is left alone.
type SidecarLeft struct {
	Pod Ref
	Why string
}

// Sidecars holds the pods of one node whose connections go through a proxy. It is not safe for concurrent use.
type Sidecars struct {
	node     string
	selector labels.Selector
	pods     map[Ref]*Pod
	// uids are those in the names of the cgroups of all pods of the node that have not finished.
	uids map[Ref]string
	// evaluated are the annotations of pods: they may be long, and other pods change.
	evaluated map[*Pod]evaluation

	list     []Sidecar
	left     []SidecarLeft
	problems []ObjectProblem
}

// An evaluation is what sidecarOf returns.
type evaluation struct {
	sidecar  Sidecar
	problems []string
}

// NewSidecars returns a Sidecars without pods. A nil selector matches none.
func NewSidecars(node string, selector labels.Selector) *Sidecars {
	return &Sidecars{node: node, selector: selector, pods: map[Ref]*Pod{}, uids: map[Ref]string{}}
}

// NamedBy returns the pod of the node that has this UID in the name of its cgroup, whether it is selected or not.
func (s *Sidecars) NamedBy(uid string) (pod Ref, found bool) {
	for ref, other := range s.uids {
		if uid == other && (!found || ref.Compare(pod) < 0) {
			pod, found = ref, true
		}
	}
	return pod, found
}

// Apply applies a batch of changes, and reports whether pods that are selected may have changed.
func (s *Sidecars) Apply(changes []Change) (changed bool) {
	for _, c := range changes {
		if c.Ref.Kind != KindPod {
			continue
		}
		p, ok := c.Object.(*Pod)
		_, before := s.pods[c.Ref]
		delete(s.pods, c.Ref)
		delete(s.uids, c.Ref)
		if ok && s.node != "" && p.Node == s.node && !p.Finished {
			s.uids[c.Ref] = p.cgroupUID()
			if s.selector != nil && p.Proxy != nil && s.selector.Matches(labels.Set(p.Proxy.Labels)) {
				s.pods[c.Ref] = p
			}
		}
		changed = changed || before || s.pods[c.Ref] != nil
	}
	if changed {
		s.decide()
	}
	return changed
}

// Pods returns the pods whose connections go through a proxy, sorted by their Refs. The list must not be modified.
func (s *Sidecars) Pods() []Sidecar { return s.list }

// Left returns the pods that are selected and left alone, sorted by their Refs. The list must not be modified.
func (s *Sidecars) Left() []SidecarLeft { return s.left }

// Problems returns what is wrong with annotations, sorted by object. The list must not be modified.
func (s *Sidecars) Problems() []ObjectProblem { return s.problems }

func (s *Sidecars) decide() {
	before := s.evaluated
	s.list, s.left, s.problems, s.evaluated = nil, nil, nil, map[*Pod]evaluation{}
	for _, ref := range slices.SortedFunc(maps.Keys(s.pods), Ref.Compare) {
		p := s.pods[ref]
		if why := leftAlone(p); why != "" {
			s.left = append(s.left, SidecarLeft{ref, why})
			continue
		}
		e, known := before[p]
		if !known {
			e.sidecar, e.problems = sidecarOf(ref, p)
		}
		s.evaluated[p] = e
		s.list = append(s.list, e.sidecar)
		for _, why := range e.problems {
			s.problems = append(s.problems, ObjectProblem{ref, condition.AnnotationInvalid.New("%s", why).Do("write a list of ports, networks or devices, or \"*\"")})
		}
	}
}

// leftAlone returns why a pod is left alone; empty if it is not.
func leftAlone(p *Pod) string {
	switch {
	case p.Proxy.Left != "":
		return p.Proxy.Left
	case p.HostNetwork:
		return "it is in the host network, where its connections cannot be distinguished from the node's"
	case !p.Proxy.Found:
		return fmt.Sprintf("no container is a proxy: none is named %s or has runAsUser: %d", istioProxy, defaultProxyUser)
	case p.cgroupUID() == "":
		return "it has no metadata.uid, after which the kubelet names its cgroup"
	}
	return ""
}

// sidecarOf evaluates the annotations of a pod. Invalid ones are as if they were not set.
func sidecarOf(ref Ref, p *Pod) (s Sidecar, problems []string) {
	x := p.Proxy
	s = Sidecar{Pod: ref, UID: p.cgroupUID(), ProxyUID: x.UID, ProxyGID: x.GID, OtherUIDs: x.OtherUIDs, OtherGIDs: x.OtherGIDs,
		ProxyContainer: x.Container, Native: x.Native, DNS: x.DNS, UserNamespace: x.UserNamespace, ProbePorts: x.Probes,
		IncludeOutbound: Networks{All: true}, IncludeInboundPorts: Ports{All: true}}
	read := func(name string, set func(value string) error) {
		value, given := x.Traffic[name]
		if !given {
			return
		}
		if err := set(value); err != nil {
			if name != istioReroute {
				name = istioTraffic + name
			}
			problems = append(problems, fmt.Sprintf("annotation %s: %v: it is ignored", name, err))
		}
	}
	read("includeOutboundIPRanges", func(v string) (err error) { return assign(&s.IncludeOutbound, v, parseNetworks) })
	read("excludeOutboundIPRanges", func(v string) error { return assignList(&s.ExcludeOutbound, v, parseNetwork) })
	read("includeOutboundPorts", func(v string) error { return assignList(&s.IncludeOutboundPorts, v, parsePort) })
	read("excludeOutboundPorts", func(v string) error { return assignList(&s.ExcludeOutboundPorts, v, parsePort) })
	read("includeInboundPorts", func(v string) error { return assign(&s.IncludeInboundPorts, v, parsePorts) })
	read("excludeInboundPorts", func(v string) error { return assignList(&s.ExcludeInboundPorts, v, parsePort) })
	read("excludeInterfaces", func(v string) error { return assignList(&s.ExcludeInterfaces, v, ParseInterface) })
	read("kubevirtInterfaces", func(v string) error { return assignList(&s.RerouteInterfaces, v, ParseInterface) })
	read(istioReroute, func(v string) error { return assignList(&s.RerouteInterfaces, v, ParseInterface) }) // it wins
	if x.Istio {
		s.ExcludeInboundPorts = append(s.ExcludeInboundPorts, istioPorts...)
	}
	return s, problems
}

func assign[T any](to *T, text string, parse func(string) (T, error)) error {
	v, err := parse(text)
	if err == nil {
		*to = v
	}
	return err
}

func assignList[T any](to *[]T, text string, parse func(string) (T, error)) error {
	all, err := parseList(text, parse)
	if err == nil {
		*to = all
	}
	return err
}

// parseList parses a list with commas, which may be empty.
func parseList[T any](text string, parse func(string) (T, error)) (all []T, err error) {
	for _, word := range strings.Split(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		v, err := parse(word)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%.40q is not a port from 1 to 65535", text)
	}
	return uint16(port), nil
}

func parsePorts(text string) (p Ports, err error) {
	if strings.TrimSpace(text) == "*" {
		return Ports{All: true}, nil
	}
	p.List, err = parseList(text, parsePort)
	return p, err
}

// ParseInterface checks the name of a device, or the beginning of names and "+", as iptables takes them.
func ParseInterface(text string) (string, error) {
	if len(text) > 15 || text == "" || strings.ContainsAny(text, "/!") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%.40q is not the name of a device", text)
	}
	return text, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%.40q is not a network such as 10.0.0.0/8 or fd00::/8", text)
	}
	return p.Masked(), nil
}

func parseNetworks(text string) (n Networks, err error) {
	if strings.TrimSpace(text) == "*" {
		return Networks{All: true}, nil
	}
	n.List, err = parseList(text, parseNetwork)
	return n, err
}
