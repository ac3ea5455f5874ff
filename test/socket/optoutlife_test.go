// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
)

// A podCgroup is one that the test creates as the kubelet would, next to those of the lab's pods or in a
// hierarchy of cgroup v1.
type podCgroup struct {
	w    *world
	path string
}

// cgroup creates one, with missing directories above it. Those that it created are removed at the end of the
// test, with the processes in them.
func (w *world) cgroup(path string) *podCgroup {
	w.t.Helper()
	if _, err := os.Stat(path); err == nil {
		return &podCgroup{w, path}
	}
	w.cgroup(filepath.Dir(path))
	w.must(os.Mkdir(path, 0o755))
	w.t.Cleanup(func() { w.removeCgroup(path) }) // before its parent
	return &podCgroup{w, path}
}

// removeCgroup ends the processes in a directory and removes it.
func (w *world) removeCgroup(path string) {
	w.t.Helper()
	w.eventually("cgroup "+path+" can be removed", func() bool {
		text, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		err := os.Remove(path)
		return err == nil || os.IsNotExist(err)
	})
}

// run starts processes of a host in a container of the pod, and returns a function that ends them.
func (c *podCgroup) run(container string, host *lab.Host, argv ...string) (end func()) {
	c.w.t.Helper()
	in := c.w.cgroup(filepath.Join(c.path, container))
	cmd := host.Command(context.Background(), argv...)
	c.w.must(cmd.Start())
	end = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	c.w.t.Cleanup(end)
	c.w.must(os.WriteFile(filepath.Join(in.path, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	return end
}

// besidePods is where the kubelet puts the cgroup of another pod.
func besidePods(host *lab.Host, uid string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(host.Cgroup)), "kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// withUID is a pod's object with another UID.
func withUID(p *corev1.Pod, uid string) *corev1.Pod {
	p.UID = types.UID(uid)
	return p
}

// A pod that is replaced is another pod; one that starts is found without an event; one that gets a new network
// namespace is opted out there.
func TestOptOutFollowsThePod(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	a1, uid := w.Host("a1"), "0a1b2c3d-0000-4000-8000-000000000001"
	w.apply("a1", runningPod(a1, "off"))
	w.wantShortcut(t, "a1", false)
	w.apply("a1", withUID(runningPod(a1, "off"), uid))
	w.wantShortcut(t, "a1", true)

	pod := w.cgroup(besidePods(a1, uid))
	w.awaitOptedOut("with the new pod's cgroup found", func(all []optedOutPod) bool {
		return strings.Contains(all[0].Problem, "no process")
	})
	end := pod.run("first.scope", a1, "sleep", "600")
	begin := time.Now()
	w.eventually("the new pod is found", func() bool { return len(w.cookies()) == 1 })
	t.Logf("found %v after its process was started", time.Since(begin))
	w.wantShortcut(t, "a1", false)

	end() // as when the sandbox is created again
	pod.run("second.scope", w.Host("a3"), "sleep", "600")
	w.eventually("a1 has the shortcut again, and a3 has not", func() bool {
		c := w.cookies()
		return len(c) == 1 && c[0] == w.cookieOf(w.Host("a3"))
	})
	w.wantShortcut(t, "a1", true)
	w.wantShortcut(t, "a3", false)
}

// Other processes in a pod's cgroup do not matter: programs in namespaces that they created, and helpers on the
// host's network.
func TestOptOutIsOfThePodsNamespace(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	a1, uid := w.Host("a1"), "0a1b2c3d-0000-4000-8000-000000000002"
	pod := w.cgroup(besidePods(a1, uid))
	pod.run("helper.scope", w.Host("node-a"), "sleep", "600")
	pod.run("app.scope", a1, "sh", "-c", "for i in 1 2 3 4 5 6; do unshare --net sleep 600 & done; exec sleep 600")
	pod.run("pause.scope", a1, "sleep", "600")
	w.apply("a1", withUID(runningPod(a1, "off"), uid))
	w.wantShortcut(t, "a1", false)
	w.wantShortcut(t, "node-a", true)
	if got, want := w.cookies(), w.cookieOf(a1); len(got) != 1 || got[0] != want {
		t.Errorf("the namespaces %v have opted out, want a1's, %d", got, want)
	}
}

// R4, R37: opted-out pods stay so without an agent and while another one starts, also with bad manifests. Those
// that no longer apply are removed once the state is complete.
func TestOptOutOutlivesTheAgent(t *testing.T) {
	w := startWorld(t, "node-a")
	w.serveWeb()
	w.write("a2", runningPod(w.Host("a2"), "off"))
	w.apply("a1", runningPod(w.Host("a1"), "off"))
	w.awaitOptedOut("with both pods found", found(2))
	before := w.counters(w.agent())
	calls, stop := make(chan int), make(chan struct{})
	go func() { calls <- w.call(w.Host("a1"), stop) }()

	w.must(w.agent().Kill())
	w.must(w.folder.Remove("a2"))
	w.write("a3", runningPod(w.Host("a3"), "off"))
	w.must(w.folder.Write("bad", []byte(badManifest)))
	w.must(w.agent().StartOnly())
	w.must(w.agent().WaitFor("with an error for the bad manifest", func(s *api.Status) bool { return s.Source.Errors > 0 }))
	if got := w.cookies(); len(got) != 2 {
		t.Errorf("the namespaces %v have opted out, want those of a1 and a2 as before", got)
	}
	w.remove("bad")
	w.must(w.agent().Stop())
	w.start()

	close(stop)
	n := <-calls
	after := w.counters(w.agent())
	if got := after.OptedOut - before.OptedOut; got != uint64(n) || after.ConnectBalance != before.ConnectBalance || n == 0 {
		t.Errorf("of %d calls of a1, %d passed and %d were balanced: there was a gap", n, got, after.ConnectBalance-before.ConnectBalance)
	}
	w.wantShortcut(t, "a1", false)
	w.wantShortcut(t, "a2", true)
	w.wantShortcut(t, "a3", false)
}

// On a fresh node the calls of an opted-out pod pass from the moment that the programs are attached.
func TestOptOutFromTheStart(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("udp", objects(w.udp("udp", 2, "b1"))...)
	w.write("a1", runningPod(w.Host("a1"), "off"))
	calls, stop := make(chan int), make(chan struct{})
	go func() { calls <- w.call(w.Host("a1"), stop) }()
	w.start()
	w.eventually("a1's calls pass", func() bool { return w.counters(w.agent()).OptedOut >= 10 })
	close(stop)
	<-calls
	if c := w.counters(w.agent()); c.ConnectBalance > 0 {
		t.Errorf("%d calls of a1 were balanced, want none", c.ConnectBalance)
	}
}

// call calls a Service until it is stopped, and returns how often.
func (w *world) call(host *lab.Host, stop <-chan struct{}) (n int) {
	for {
		select {
		case <-stop:
			return n
		case <-time.After(time.Millisecond):
		}
		fd, err := host.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			w.t.Error(err)
			return n
		}
		if err := unix.Connect(fd, ipv4.sockaddr(ipv4.clusterIP(2))); err != nil {
			w.t.Errorf("connect: %v", err)
		}
		unix.Close(fd)
		n++
	}
}

// The table is repaired if somebody else writes to it.
func TestOptOutIsRepaired(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--audit-interval=50ms"}
	w.start()
	w.serveWeb()
	w.apply("a1", runningPod(w.Host("a1"), "off"))
	a1, a2 := w.cookieOf(w.Host("a1")), w.cookieOf(w.Host("a2"))
	table := w.optedOutTable()
	defer table.Close()
	w.must(table.Delete(a1))
	w.must(table.Put(a2, uint32(1)))
	w.eventually("only a1 has opted out", func() bool {
		c := w.cookies()
		return len(c) == 1 && c[0] == a1
	})
	w.wantShortcut(t, "a1", false)
	w.wantShortcut(t, "a2", true)
}

// With a hierarchy of cgroup v1 the kubelet's directories are there, as on a node whose systemd is in hybrid
// mode.
func TestOptOutWithCgroupV1(t *testing.T) {
	controller := cgroupV1(t)
	w := startWorld(t, "node-a")
	w.serveWeb()
	a1, uid := w.Host("a1"), "0a1b2c3d-0000-4000-8000-000000000003"
	own := filepath.Join(controller, "beeline-test-"+w.Name)
	w.cgroup(own)
	pod := w.cgroup(filepath.Join(own, "kubepods", "besteffort", "pod"+uid))
	pod.run("container", a1, "sleep", "600")
	w.apply("a1", withUID(runningPod(a1, "off"), uid))
	w.wantShortcut(t, "a1", false)
	w.wantShortcut(t, "a2", true)
	if got, want := w.cookies(), w.cookieOf(a1); len(got) != 1 || got[0] != want {
		t.Errorf("the namespaces %v have opted out, want a1's, %d", got, want)
	}

	// Started explicitly, so that the pod is found only in the directory given.
	w.must(w.agent().Stop())
	w.agent().Flags = []string{"--pod-cgroups=" + w.Host("node-a").CgroupRoot}
	w.start()
	w.wantShortcut(t, "a1", true)
	w.must(w.agent().Stop())
	w.agent().Flags = []string{"--pod-cgroups=" + own}
	w.start()
	w.wantShortcut(t, "a1", false)
}

// cgroupV1 is where the machine mounts a controller of cgroup v1.
func cgroupV1(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		if kind, options, _ := strings.Cut(after, " "); kind == "cgroup" && strings.Contains(options, "pids") {
			return strings.Fields(before)[4]
		}
	}
	t.Skip("this machine mounts no controller of cgroup v1 (pids)")
	return ""
}
