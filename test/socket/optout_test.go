// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
)

// shortcut is the annotation with a value; nil if that is empty.
func shortcut(value string) map[string]string {
	if value == "" {
		return nil
	}
	return map[string]string{service.AnnotationSocketShortcut: value}
}

// runningPod is the Pod object of a pod of the lab, with its UID there.
func runningPod(host *lab.Host, annotation string) *corev1.Pod {
	p := podObject(host, "")
	p.UID, p.Annotations = types.UID(host.PodUID()), shortcut(annotation)
	p.Spec.Containers[0].Ports = nil
	return p
}

func namespaceObject(name, annotation string) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: shortcut(annotation)},
	}
}

func runtimeClass(name, annotation string) *nodev1.RuntimeClass {
	return &nodev1.RuntimeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: shortcut(annotation)},
		Handler:    "handler",
	}
}

// serveWeb serves ClusterIPs 1 by TCP and 2 by UDP, both with b1.
func (w *world) serveWeb() {
	w.t.Helper()
	w.write("udp", objects(w.udp("udp", 2, "b1"))...)
	w.apply("web", objects(w.web("web", 1, "b1"))...)
}

// wantShortcut checks whether a pod's calls to Services are translated at the socket, or pass. The counters
// tell which hook decided.
func (w *world) wantShortcut(t *testing.T, pod string, on bool) {
	t.Helper()
	inEachFamily(t, func(t *testing.T, f family) {
		if on {
			w.wantMeet(t, pod, f, f.clusterIP(1), "b1")
			f.datagrams(t, w.Host(pod)).exchange(f.clusterIP(2))
			return
		}
		w.wantMeet(t, pod, f, f.clusterIP(1), alone)
		before := w.counters(w.agent())
		if got := meetNobody(t, w.Host(pod), f, f.clusterIP(2)); got != unix.ENETUNREACH {
			t.Errorf("a datagram of %s to %s gets %v, want %s", pod, f.clusterIP(2), got, alone)
		}
		after := w.counters(w.agent())
		if after.OptedOut == before.OptedOut || after.DatagramBalance != before.DatagramBalance {
			t.Errorf("the hooks counted %+v, before %+v: want more of optedOut and no more datagrams balanced", after, before)
		}
	})
}

// meetNobody returns the error of datagrams to an address. The kernel limits the rate of these to one host, so
// it repeats until one arrives.
func meetNobody(t *testing.T, from *lab.Host, f family, to netip.AddrPort) error {
	t.Helper()
	s := f.datagrams(t, from)
	defer s.close()
	s.reportUnreachable()
	s.timeout(100 * time.Millisecond)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := s.sendTo("who", to); err != nil {
			return err
		}
		if _, _, err := s.receive(); err != unix.EAGAIN {
			return err
		}
	}
	return unix.EAGAIN
}

// awaitOptedOut waits for a status of the pods that opted out.
func (w *world) awaitOptedOut(what string, ok func([]optout.Pod) bool) *api.Status {
	w.t.Helper()
	var last *api.Status
	w.must(w.agent().WaitFor(what, func(s *api.Status) bool {
		last = s
		return ok(s.OptedOut.Pods)
	}))
	return last
}

type optedOutPod = optout.Pod

// optedOutTable opens the hooks' table.
func (w *world) optedOutTable() *ebpf.Map {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent().BPFFS(), bpf.SockMapOptedOut), nil)
	w.must(err)
	return m
}

// cookies are those of the namespaces that opted out.
func (w *world) cookies() (all []uint64) {
	w.t.Helper()
	m := w.optedOutTable()
	defer m.Close()
	var cookie uint64
	var one uint32
	entries := m.Iterate()
	for entries.Next(&cookie, &one) {
		all = append(all, cookie)
	}
	w.must(entries.Err())
	return all
}

// cookieOf gets the cookie from a socket of the host.
func (w *world) cookieOf(host *lab.Host) uint64 {
	w.t.Helper()
	fd, err := host.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	w.must(err)
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	w.must(err)
	return cookie
}

func found(n int) func([]optout.Pod) bool {
	return func(all []optout.Pod) bool {
		for _, p := range all {
			if !p.Found {
				return false
			}
		}
		return len(all) == n
	}
}

// The calls of a pod that opts out pass, at once; those of another on its node do not, and what is no new call
// to a Service continues.
func TestOptOutOfOnePod(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	before := w.hold("a1 a2", 1)
	connected := map[string]*udpSocket{}
	for _, f := range families {
		s := f.datagrams(t, w.Host("a1"))
		s.mustConnect(f.clusterIP(2))
		s.exchangeConnected(f.clusterIP(2))
		connected[f.name] = s
	}
	for range 2 {
		w.apply("a1", runningPod(w.Host("a1"), "off"))
		w.wantShortcut(t, "a1", false)
		w.wantShortcut(t, "a2", true)
		w.wantAlive(t, "after the pod has opted out", before)
		inEachFamily(t, func(t *testing.T, f family) {
			connected[f.name].wantPeer(f.clusterIP(2))
			connected[f.name].exchangeConnected(f.clusterIP(2))
			w.wantMeet(t, "a1", f, f.pod(w.Host("b1")), "b1")
			w.wantMeet(t, "node-a", f, f.clusterIP(1), "b1")
			// Calls to an unused address of Services pass, too (R21).
			w.wantMeet(t, "a2", f, f.clusterIP(77), dropped)
		})
		w.apply("a1", runningPod(w.Host("a1"), ""))
		w.wantShortcut(t, "a1", true)
		w.wantAlive(t, "after the annotation is gone", before)
	}
	w.apply("a1", runningPod(w.Host("a1"), "off"))
	w.remove("a1") // the object, not the pod
	w.wantShortcut(t, "a1", true)
}

// The Pod's own annotation takes precedence, then its Namespace's, then its RuntimeClass's, in whichever order
// they are set.
func TestOptOutByNamespaceAndRuntimeClass(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	class, pod := "careful", runningPod(w.Host("a1"), "")
	pod.Spec.RuntimeClassName = &class
	w.write("a2", runningPod(w.Host("a2"), "on"))
	w.apply("a1", pod)
	w.wantShortcut(t, "a1", true)
	w.apply("namespace", namespaceObject("default", "off"))
	w.wantShortcut(t, "a1", false)
	w.wantShortcut(t, "a2", true)
	w.apply("class", runtimeClass(class, "off"))
	w.apply("namespace", namespaceObject("default", "on"))
	w.wantShortcut(t, "a1", true)
	w.apply("namespace", namespaceObject("default", ""))
	w.wantShortcut(t, "a1", false)
	w.apply("class", runtimeClass(class, "maybe"))
	w.wantShortcut(t, "a1", true)
	s, err := w.agent().Status()
	w.must(err)
	if len(s.ObjectsWithProblems) != 1 || s.ObjectsWithProblems[0].Owner.String() != "RuntimeClass careful" || !strings.Contains(s.ObjectsWithProblems[0].Problems[0].Message, `"maybe"`) {
		t.Errorf("the status names %+v, want RuntimeClass careful and its value", s.ObjectsWithProblems)
	}
}

// The kubelet's other naming scheme for cgroups.
func TestOptOutWithTheCgroupfsDriver(t *testing.T) {
	t.Parallel()
	needs.Root(t)
	l, err := lab.Up(lab.Config{Temporary: true, CgroupLayout: lab.LayoutCgroupfs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Errorf("taking lab %s down: %v", l.Name, err)
		}
	})
	w := newWorldIn(t, l, "node-a")
	w.start()
	w.serveWeb()
	w.apply("a1", runningPod(w.Host("a1"), "off"))
	w.wantShortcut(t, "a1", false)
	w.wantShortcut(t, "a2", true)
}

// A pod on the host's network keeps the shortcut, and so does the node; status says so for the pod.
func TestOptOutOnTheHostNetwork(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	pod := runningPod(w.Host("a1"), "off")
	pod.Spec.HostNetwork = true
	w.apply("a1", pod)
	w.wantShortcut(t, "node-a", true)
	out, err := w.agent().CLI("status")
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 4 {
		t.Errorf("status ends with %v, want exit code 4: a warning", err)
	}
	if want := "Pod default/a1: its annotation opts it out"; !strings.Contains(out, want) {
		t.Errorf("status prints\n%s\nwant %q in it", out, want)
	}
}

// Status shows who has opted out, why, whether it is in effect, and what that means. It is no condition.
func TestOptOutInStatus(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	w.write("namespace", namespaceObject("default", "off"))
	w.apply("pods", runningPod(w.Host("a1"), ""), runningPod(w.Host("a2"), "off"), runningPod(w.Host("b2"), "off"))
	s := w.awaitOptedOut("with two pods found", found(2))
	for i, want := range []optout.Pod{
		{Namespace: "default", Name: "a1", UID: w.Host("a1").PodUID(), AnnotatedKind: "namespace", Found: true},
		{Namespace: "default", Name: "a2", UID: w.Host("a2").PodUID(), AnnotatedKind: "pod", Found: true},
	} {
		got := s.OptedOut.Pods[i]
		if got.NetNSCookie == 0 || got.Since.IsZero() {
			t.Errorf("%+v has no cookie or time", got)
		}
		got.NetNSCookie, got.Since = 0, time.Time{}
		if got != want {
			t.Errorf("the status is %+v, want %+v", got, want)
		}
	}
	out, err := w.agent().CLI("status", "-v")
	w.must(err)
	for _, want := range []string{"All is well.", "Pods that opted out of the socket shortcut", "default/a1  by that of its namespace  in force", "default/a2  by its own annotation"} {
		if !strings.Contains(out, want) {
			t.Errorf("status prints\n%s\nwant %q in it", out, want)
		}
	}
	w.write("a3", func() *corev1.Pod {
		p := runningPod(w.Host("a3"), "")
		p.UID = "no-such-uid"
		return p
	}())
	s = w.awaitOptedOut("with a problem of a3", func(all []optout.Pod) bool { return len(all) == 3 && all[2].Late })
	if got := s.OptedOut.Pods[2]; got.Found || got.Problem != "no cgroup has its UID in its name" {
		t.Errorf("the status of a pod without a cgroup is %+v", got)
	}
	if all := s.Conditions.Wrong(); len(all) != 1 || all[0].Code != condition.PodNotFound.Code || all[0].Object != "Pod default/a3" {
		t.Errorf("the conditions are\n%s\nwant one about a3", all)
	}
	w.wantShortcut(t, "a3", true)
}
