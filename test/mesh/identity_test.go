// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/test/lab"
)

// TestWhoIsTheProxy: applications run as root in each of these pods, and none bypasses its proxy; the proxy's own
// connections do not come back to it. Where nothing says who the proxy is, nothing passes.
func TestWhoIsTheProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-pods=" + selected}
	w.impostors()
	w.must(w.agent.Start())
	as := func(user, group uint32) syscall.SysProcAttr {
		return syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group, NoSetGroups: true}}
	}
	container := strings.Repeat("ab", 32)
	for _, c := range []struct {
		name        string
		user, group int64 // of the pod's spec
		owner       int   // of the proxy's files
		container   bool  // the proxy is in a container of its own, which the kubelet has reported
		attributes  syscall.SysProcAttr
		by          string
	}{
		{"a user and a group", proxyUser, proxyUser, proxyUser, false, as(proxyUser, proxyUser), "user 1337, group 1337"},
		{"a group, as Istio's proxy with TPROXY", 0, proxyUser, 0, false, as(0, proxyUser), "group 1337"},
		{"a container", 0, 0, 0, true, as(0, 0), "its container"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.in(t)
			cgroup := w.Host("a1").Cgroup
			if c.container {
				cgroup = w.makeContainer(container)
			}
			s := w.startProxyAs(haproxy, "a1", c.owner, cgroup, c.attributes)
			w.putProxy(c.user, c.group, map[bool]string{true: container}[c.container])
			w.eventually("the proxy is known by "+c.by, func() bool {
				pods := w.meshStatus().Pods
				return len(pods) == 1 && pods[0].Served() && pods[0].Proxy.String() == c.by
			})
			w.inbound(s)
			w.goesByProxy()
			before := w.counts()
			w.ownService(s)
			if now := w.counts(); now.Loops != before.Loops || now.Unknown != before.Unknown {
				t.Errorf("%d connections of the proxy would have come back, %d were refused", now.Loops-before.Loops, now.Unknown-before.Unknown)
			}
			status, err := w.agent.Status()
			w.must(err)
			for _, c := range status.Conditions {
				if c.Severity == condition.Error {
					t.Errorf("a condition: %s: %s", c.Code, c.Message)
				}
			}
		})
	}
	t.Run("a user namespace", func(t *testing.T) { w.in(t).userNamespace() })
	t.Run("an application in a user namespace, alone", func(t *testing.T) { w.in(t).alone() })
	t.Run("nothing, until the kubelet reports the container", func(t *testing.T) { w.in(t).unclear(container) })
	t.Run("another container", func(t *testing.T) { w.in(t).otherContainer() })
	t.Run("another user than the spec's", func(t *testing.T) { w.in(t).loop() })
	t.Run("a stranger at the proxy's port, and its children", func(t *testing.T) { w.in(t).family() })
}

// impostors starts applications of a1 in user namespaces in which their own user is the proxy's. One also has a network
// namespace, and is the first process of the pod that is found.
func (w *world) impostors() {
	w.t.Helper()
	a1, first := w.Host("a1"), filepath.Join(filepath.Dir(w.Host("a1").Cgroup), "0.scope")
	w.must(os.Mkdir(first, 0o755))
	w.t.Cleanup(func() { w.eventually("the cgroup is removed", func() bool { return os.Remove(first) == nil }) })
	for cgroup, flags := range map[string]uintptr{a1.Cgroup: syscall.CLONE_NEWUSER, first: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET} {
		w.startImpostor(cgroup, flags)
	}
}

func (w *world) startImpostor(cgroup string, flags uintptr) {
	w.t.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: proxyUser, HostID: 0, Size: 1}}
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, UidMappings: ids, GidMappings: ids}
	w.startIn(cgroup, w.Host("a1"), cmd)
}

// userNamespace: in a pod with a user namespace, which owns its network namespace, the users of the spec are those of
// that namespace.
func (w *world) userNamespace() {
	w.t.Helper()
	const uid, mapped = "0badcafe-2222-4333-8444-555566667777", 100000
	a1 := w.Host("a1")
	own := false
	pod := meshed(a1, func(p *corev1.Pod) { p.Name, p.UID, p.Spec.HostUsers = "users", uid, &own })
	w.must(w.folder.Put("users", pod))
	w.t.Cleanup(func() { w.must(w.folder.Remove("users")) })
	directory := filepath.Join(filepath.Dir(filepath.Dir(a1.Cgroup)), "kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	w.must(os.Mkdir(directory, 0o755))
	w.t.Cleanup(func() { w.eventually("the cgroup is removed", func() bool { return os.Remove(directory) == nil }) })
	cmd := exec.Command("sh", "-c", `ip link set lo up && ip link add wire type veth peer name end && ip link set end up && ip link set wire up &&
		ip address add 10.10.1.77/32 dev wire && ip route add default dev wire && exec setpriv --reuid=1337 --regid=1337 --clear-groups sleep 600`)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: mapped, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{}}
	w.startIn(directory, a1, cmd)
	w.eventually("the pod is served, and its proxy known", func() bool {
		for _, p := range w.meshStatus().Pods {
			if p.Name == "default/users" {
				return p.Served() && p.Proxy.String() == "user 101337, group 101337"
			}
		}
		return false
	})
	want := []string{mesh.Refused, mesh.Directly} // no proxy listens: applications are refused by loopback, the proxy is not
	w.eventually("an application's connection goes to loopback, the proxy's does not", func() bool {
		got := w.verified("users", 1, "--port", "8080")
		return len(got) >= 2 && slices.Equal(got[:2], want)
	})
}

// alone: the only process of a pod is in a user namespace that it has made, in which it is the proxy's user. That is not
// the pod's, as its spec does not ask for one.
func (w *world) alone() {
	w.t.Helper()
	directory := w.makePod("alone")
	w.t.Cleanup(func() {
		w.must(w.folder.Remove("alone"))
		w.eventually("the cgroup is removed", func() bool { return os.Remove(directory) == nil })
	})
	w.startImpostor(directory, syscall.CLONE_NEWUSER|syscall.CLONE_NEWNET)
	w.eventually("the pod is served", func() bool {
		for _, p := range w.meshStatus().Pods {
			if p.Name == "default/alone" && p.Served() {
				if p.Proxy.String() != "user 1337, group 1337" {
					w.t.Errorf("its proxy is %s", &p.Proxy)
				}
				return true
			}
		}
		return false
	})
}

// putProxy writes a1 as a pod whose proxy has this user, group and container.
func (w *world) putProxy(user, group int64, container string) {
	w.t.Helper()
	w.must(w.folder.Put("a1", meshed(w.Host("a1"), func(p *corev1.Pod) {
		p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &group}
		if container != "" {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", ContainerID: "containerd://0123"}, {Name: "istio-proxy", ContainerID: "containerd://" + container}}
		}
	})))
}

// unclear: connections of applications and of the proxy are refused; the status says why, by exit code 3.
func (w *world) unclear(container string) {
	w.t.Helper()
	w.putProxy(0, 0, "")
	w.awaitCondition(condition.MeshProxyUnknown.Code)
	to := netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	if conn, err := w.dial("a1", to, lab.DialOptions{}); err == nil {
		w.t.Errorf("a connection from %s is not refused", local(conn))
	}
	if fd, err := w.Host("a1").Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP); err == nil { // else no MPTCP
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != unix.ECONNREFUSED {
			w.t.Errorf("a connection by MPTCP ends by %v, want ECONNREFUSED", err)
		}
		unix.Close(fd)
	}
	if got, want := w.verified("default/a1", 1), []string{mesh.Refused, mesh.Refused}; !slices.Equal(got, want) { // no proxy runs
		w.t.Errorf("mesh verify finds the ways %q of an application and of this host, want %q", got, want)
	}
	w.startProxyAs(haproxy, "a1", 0, w.makeContainer(container), syscall.SysProcAttr{})
	w.putProxy(0, 0, container)
	w.awaitPods("a1")
	w.goesByProxy()
}

// makeContainer makes the cgroup of a container of a1. It is removed with this part.
func (w *world) makeContainer(id string) (cgroup string) {
	w.t.Helper()
	cgroup = filepath.Join(filepath.Dir(w.Host("a1").Cgroup), "cri-containerd-"+id+".scope")
	w.must(os.Mkdir(cgroup, 0o755))
	w.t.Cleanup(func() {
		w.eventually("the container's cgroup is removed", func() bool { return os.Remove(cgroup) == nil || errors.Is(unix.Access(cgroup, 0), unix.ENOENT) })
	})
	return cgroup
}

// goesByProxy: an application's connection is answered, and goes through the proxy, whose own is not redirected.
func (w *world) goesByProxy() {
	w.t.Helper()
	before := w.counts()
	conn := w.open("a1", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{})
	defer conn.Close()
	if w.ask(conn); !local(conn).IsLoopback() {
		w.t.Errorf("an application's connection from %s does not go to the proxy", local(conn))
	}
	if now := w.counts(); now.Outbound-before.Outbound != 1 || now.Loops != before.Loops || now.Unknown != before.Unknown {
		w.t.Errorf("of one connection %d are redirected, %d would have come back, %d were refused", now.Outbound-before.Outbound, now.Loops-before.Loops, now.Unknown-before.Unknown)
	}
}

// otherContainer: when the proxy's container restarts, the new one is the proxy once the kubelet has reported its id.
// Until then nothing passes, and the former one is never the proxy again.
func (w *world) otherContainer() {
	w.t.Helper()
	ids := []string{strings.Repeat("12", 32), strings.Repeat("34", 32)}
	former := w.makeContainer(ids[0])
	s := w.startProxyAs(haproxy, "a1", 0, former, syscall.SysProcAttr{})
	w.putProxy(0, 0, ids[0])
	w.awaitContainer(former)
	w.goesByProxy()
	s.end()
	w.eventually("the former cgroup is removed", func() bool { return os.Remove(former) == nil })
	w.awaitCondition(condition.MeshProxyUnknown.Code)
	next := w.makeContainer(ids[1])
	w.startProxyAs(haproxy, "a1", 0, next, syscall.SysProcAttr{})
	if conn, err := w.dial("a1", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{}); err == nil {
		w.t.Errorf("a connection from %s is not refused while the kubelet has not reported the new container", local(conn))
	}
	w.putProxy(0, 0, ids[1])
	w.awaitContainer(next)
	w.goesByProxy()
}

// awaitContainer waits until a1's proxy is known by this container.
func (w *world) awaitContainer(cgroup string) {
	w.t.Helper()
	w.eventually("the proxy is known by "+cgroup, func() bool {
		pods := w.meshStatus().Pods
		return len(pods) == 1 && pods[0].Served() && pods[0].Proxy.Cgroup == cgroup
	})
}

// awaitCondition waits until `beeline status` has a condition that is an error, and ends with the exit code for it.
func (w *world) awaitCondition(code condition.Code) {
	w.t.Helper()
	w.eventually("the condition "+string(code), func() bool {
		cmd := w.Host("node-a").Command(w.t.Context(), program, "status", "--agent-socket", w.agent.Socket())
		out, _ := cmd.Output()
		return strings.Contains(string(out), string(code)) && cmd.ProcessState.ExitCode() == 3
	})
}
