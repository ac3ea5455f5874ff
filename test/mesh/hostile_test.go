// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// TestHostilePods: a1 has 1,000 processes, a FIFO as its proxy's resolv.conf and annotations that would fill the
// tables; another pod never starts, and others come and go, 20 a second. Nothing of this reaches a2, and nothing is
// left of it.
func TestHostilePods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-pods=" + selected, "--mesh-dns-port=15053"}
	a1, a2, b1 := w.Host("a1"), w.Host("a2"), w.Host("b1")
	var ports strings.Builder
	for port := range 40000 {
		fmt.Fprintf(&ports, "%d,", port+1)
	}
	hostile := func(p *corev1.Pod) {
		p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}}
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = ports.String()
	}
	w.must(w.folder.Put("a1", meshed(a1, hostile)))
	w.must(w.folder.Put("a2", meshed(a2, func(p *corev1.Pod) { p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "8081" })))
	w.crowd(a1)
	w.startProxy(haproxy, "a2")
	waiting := w.makePod("waiting")
	w.must(w.agent.Start())
	w.awaitPods("a2")
	w.eventually("a1's status says what is wrong", w.saysWhatIsWrong)
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if !w.saysWhatIsWrong() {
			t.Fatal("a1's status does not say any more what is wrong")
		}
	}
	if conn, err := w.dial("a1", netip.AddrPortFrom(b1.Addr4, lab.PortTCP), lab.DialOptions{}); err == nil {
		t.Errorf("a1, whose rules are not in the tables, connects from %s", local(conn))
	}
	begin, used := time.Now(), w.cpuTime()
	for i := range 100 {
		next := time.Now().Add(time.Second / 20)
		w.comeAndGo(fmt.Sprintf("fleeting-%d", i))
		w.ways([]way{{"a2 to a port", a2, b1, lab.PortTCP, true}, {"a2 to an excluded port", a2, b1, lab.PortHTTP, false}})
		time.Sleep(time.Until(next))
	}
	t.Logf("in %v the agent has used %v of CPU time", time.Since(begin), w.cpuTime()-used)
	begin, used = time.Now(), w.cpuTime()
	time.Sleep(2 * time.Second)
	idle := w.cpuTime() - used
	if t.Logf("when no pod comes or goes it uses %v in %v", idle, time.Since(begin)); idle > time.Since(begin)/2 {
		t.Error("the agent is busy while nothing happens")
	}
	w.must(w.folder.Remove("waiting"))
	w.must(os.Remove(waiting))
	w.must(w.folder.Put("a1", meshed(a1, func(*corev1.Pod) {})))
	w.awaitPods("a1", "a2")
	w.eventually("only the rows of a1 and a2 are left", func() bool { return w.podRows() == 4 })
}

// saysWhatIsWrong reports whether the status names both that is wrong with a1.
func (w *world) saysWhatIsWrong() bool {
	w.t.Helper()
	pods := w.meshStatus().Pods
	i := slices.IndexFunc(pods, func(p api.MeshPod) bool { return p.Name == "default/a1" })
	return i >= 0 && strings.Contains(pods[i].Error, "do not fit") && strings.Contains(pods[i].Error, "not a regular file")
}

// crowd starts 1,000 processes in a pod, and as many of the proxy's user as are looked at that have a FIFO as
// resolv.conf.
func (w *world) crowd(pod *lab.Host) {
	w.t.Helper()
	for _, script := range []string{
		"for i in $(seq 1000); do sleep 600 & done; wait",
		"mount -t tmpfs none /etc && mkfifo /etc/resolv.conf && for i in $(seq 8); do setpriv --reuid=1337 --regid=1337 --clear-groups sleep 600 & done; wait",
	} {
		cmd := exec.Command("unshare", "--mount", "sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		w.startIn(pod.Cgroup, pod, cmd)
		w.t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	}
}

// makePod makes a pod with a cgroup and no process.
func (w *world) makePod(name string) (cgroup string) {
	w.t.Helper()
	a1 := w.Host("a1")
	uid := fmt.Sprintf("%08x-aaaa-4bbb-8ccc-dddddddddddd", crc32.ChecksumIEEE([]byte(name)))
	w.must(w.folder.Put(name, meshed(a1, func(p *corev1.Pod) { p.Name, p.UID = name, types.UID(uid) })))
	cgroup = filepath.Join(filepath.Dir(filepath.Dir(a1.Cgroup)), "kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	w.must(os.Mkdir(cgroup, 0o755))
	w.t.Cleanup(func() { os.Remove(cgroup) })
	return cgroup
}

// comeAndGo makes a pod with a process in a network namespace of its own, and removes it at once.
func (w *world) comeAndGo(name string) {
	w.t.Helper()
	cgroup := w.makePod(name)
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	w.startIn(cgroup, w.Host("a1"), cmd)
	end(cmd)
	w.must(w.folder.Remove(name))
	w.must(os.Remove(cgroup))
}

// cpuTime is what the agent has used.
func (w *world) cpuTime() time.Duration {
	w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.agent.PID()))
	w.must(err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system int64
	fmt.Sscan(fields[14-3], &user)
	fmt.Sscan(fields[15-3], &system)
	return time.Duration(user+system) * time.Second / 100 // USER_HZ
}

// podRows is how many rows pods have in the kernel.
func (w *world) podRows() (n int) {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.MeshMapMeshPods), nil)
	w.must(err)
	defer m.Close()
	var k bpf.MeshMeshPodKey
	var v bpf.MeshMeshPod
	it := m.Iterate()
	for it.Next(&k, &v) {
		n++
	}
	w.must(it.Err())
	return n
}
