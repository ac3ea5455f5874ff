// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const badManifest = `apiVersion: v1
kind: Service
metadata:
  name: bad
spec:
  clusterIP: 10.96.0.77
  ports:
    - port: 99999
`

// attached counts the programs on a node's cgroup, of any owner.
func (w *world) attached(host *lab.Host) int {
	w.t.Helper()
	dir, err := os.Open(host.CgroupRoot)
	w.must(err)
	defer dir.Close()
	n := 0
	for _, hook := range []ebpf.AttachType{
		ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect,
		ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername,
	} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: hook})
		w.must(err)
		n += len(found.Programs)
	}
	return n
}

// wantNothingLeft checks that a node is as if it never had an agent.
func (w *world) wantNothingLeft(t *testing.T, a *node.Agent) {
	t.Helper()
	if n := w.attached(a.Host); n != 0 {
		t.Errorf("%d programs are attached to %s, want none", n, a.Host.CgroupRoot)
	}
	if pins := w.pins(a); len(pins) != 0 {
		t.Errorf("pins remain under %s: %v", a.BPFFS(), pins)
	}
}

// wantExit checks the exit code of an ended process, and that its output contains all of the texts.
func wantExit(t *testing.T, err error, code int, texts ...string) {
	t.Helper()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != code {
		t.Errorf("it ended with %v, want exit code %d", err, code)
		return
	}
	said := err.Error() + string(exit.Stderr)
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("its output does not contain %q:\n%s", text, said)
		}
	}
}

// wantEnd waits until a started process ends by itself, and checks how.
func wantEnd(t *testing.T, a *node.Agent, code int, texts ...string) {
	t.Helper()
	pid, ended := a.PID(), make(chan error, 1)
	go func() { ended <- a.Wait() }()
	select {
	case err := <-ended:
		wantExit(t, err, code, texts...)
	case <-time.After(patience):
		syscall.Kill(pid, syscall.SIGKILL)
		<-ended
		t.Fatalf("it is still running after %v, want exit code %d", patience, code)
	}
}

// Bad manifests at the very first start: the agent ends, says why, and has changed nothing.
func TestBadManifestsAtFirstStart(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	w.must(w.folder.Write("bad", []byte(badManifest)))
	w.must(w.agent().StartOnly())
	wantEnd(t, w.agent(), 1, "bad.yaml:8", "Service default/bad", "99999")
	w.wantNothingLeft(t, w.agent())
	w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), alone)

	w.must(w.folder.Remove("bad"))
	w.start()
	w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), "b1")
}

// If one Service does not fit into the tables of a fresh node, the others are served, and status names it and
// the flag. A tenant's Service of 32 kB (external IPs by ports) does not keep others from being served, on a
// fresh node or on one that serves already, however old it is.
func TestHostileServiceAtFirstStart(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	w.write("hostile", hostile())
	w.agent().Flags = []string{"--service-share=25", "--namespace-share=50"} // as with an API server
	w.start()
	w.must(w.agent().WaitFor("complaining", func(s *api.Status) bool { return s.Sync.LeftOut == 1 }))
	out, err := w.agent().CLI("status")
	wantExit(t, err, 3)
	for _, text := range []string{"ObjectLeftOut: Service tenant/hostile: left out: it needs 66821 entries of table frontends", "--service-share", "--max-frontends"} {
		if !strings.Contains(out, text) {
			t.Errorf("status does not say %q:\n%s", text, out)
		}
	}
	if lines := strings.Count(out, "hostile"); lines > 3 { // one for each kind of condition
		t.Errorf("status names the omitted Service in %d lines", lines)
	}
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b1") })

	w.apply("web", objects(w.web("web", 1, "b2"))...)
	w.apply("new", objects(w.web("new", 2, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), "b2")
		w.wantMeet(t, clients, f, f.clusterIP(2), "b1")
	})
	w.remove("hostile")
	w.must(w.agent().WaitFor("content", func(s *api.Status) bool { return s.Sync.LeftOut == 0 }))
	w.write("hostile", hostile())
	w.must(w.agent().WaitFor("complaining again", func(s *api.Status) bool { return s.Sync.LeftOut == 1 }))
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b1") })
}

// hostile is the oldest Service, with 256 external IPs and 260 ports.
func hostile() *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "hostile", CreationTimestamp: metav1.Unix(1, 0)},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.77.7", ClusterIPs: []string{"10.96.77.7"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	for i := range 256 {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("198.18.0.%d", i))
	}
	for i := range int32(260) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: corev1.ProtocolTCP, Port: 1000 + i})
	}
	return s
}

// A table that has no room for anything: the agent runs, and says what to raise.
func TestFullTableAtFirstStart(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	w.agent().Flags = []string{"--max-frontends=1"}
	w.start()
	out, err := w.agent().CLI("status")
	wantExit(t, err, 3)
	if !strings.Contains(out, "Service default/web: left out") || !strings.Contains(out, "--max-frontends") {
		t.Errorf("status names neither Service default/web nor --max-frontends:\n%s", out)
	}
	w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), dropped)
}

// Status reports a node name without a Node.
func TestUnknownNodeName(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--node-name=nobody"}
	w.start()
	status, err := w.agent().Status()
	if err != nil || !strings.Contains(status.Conditions.String(), `NodeUnknown: Node nobody: no Node is named "nobody"`) {
		t.Errorf("status (%v) has the conditions\n%s", err, status.Conditions)
	}
}

// Bad manifests at a restart: the previous state stays in effect, status says what is wrong, and once they are
// valid they are followed.
func TestBadManifestsAtRestart(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	w.must(w.agent().Stop())
	w.write("web", objects(w.web("web", 1, "b2"))...)
	w.write("new", objects(w.web("new", 2, "a2"))...)
	w.must(w.folder.Write("bad", []byte(badManifest)))
	w.must(w.agent().StartOnly())
	w.must(w.agent().WaitFor("with errors of its source", func(s *api.Status) bool { return s.Source.Errors > 0 }))
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(2), dropped)
	})
	out, err := w.agent().CLI("status")
	wantExit(t, err, 3)
	for _, text := range []string{"no complete state has been read yet", "bad.yaml:8", "99999"} {
		if !strings.Contains(out, text) {
			t.Errorf("status does not contain %q:\n%s", text, out)
		}
	}

	w.remove("bad")
	if out, err := w.agent().CLI("status"); err != nil {
		t.Errorf("status with good manifests: %v\n%s", err, out)
	}
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), "b2")
		w.wantMeet(t, clients, f, f.clusterIP(2), "a2")
	})
}

// A file that becomes invalid while the agent runs changes nothing, whatever else changes with it: the folder
// is one state.
func TestBadManifestsWhileRunning(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	w.must(w.folder.Write("bad", []byte(badManifest)))
	w.write("web", objects(w.web("web", 1, "b2"))...)
	w.must(w.agent().WaitFor("with errors of its source", func(s *api.Status) bool { return s.Source.Errors > 0 }))
	_, err := w.agent().CLI("status")
	wantExit(t, err, 3)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b1") })
	w.remove("bad")
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b2") })
}

// Two agents on one bpffs directory would work against each other: the second one names the first and ends, and
// the first continues.
func TestSecondAgentIsRefused(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	before := w.observe()
	second := w.newAgent(w.Host("node-a"))
	second.Flags = []string{"--agent-socket", w.Host("node-a").RunDir + "/second.sock"}
	w.must(second.StartOnly())
	wantEnd(t, second, 1, fmt.Sprintf("pid %d", w.agent().PID()), "--pins")
	if after := w.observe(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the first agent shows %+v, want %+v as before", after, before)
	}
	w.apply("web", objects(w.web("web", 1, "b2"))...)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b2") })
}

// An agent that cannot listen on its socket leaves a fresh node unchanged.
func TestSocketOfAnotherAgentIsRefused(t *testing.T) {
	w := startWorld(t, "node-a")
	other := w.newAgent(w.Host("node-b"))
	other.Flags = []string{"--agent-socket", w.agent().Socket()}
	w.must(other.StartOnly())
	wantEnd(t, other, 1, "another agent answers there")
	w.wantNothingLeft(t, other)
}

// R37: cleanup removes everything, but refuses while an agent is running. TCP connections continue; they have a
// backend's address. UDP sockets that are connected by a Service end, because nothing would end them later (R29), and
// others stay.
func TestCleanup(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	w.apply("dns", objects(w.udp("dns", 2, "a2 b1"))...)
	before := w.hold(clients, 1)
	var byService, direct []*connectedSocket
	inEachFamily(t, func(t *testing.T, f family) {
		for _, host := range w.hosts(askers) {
			byService = append(byService, w.connectUDP(w.t, f, host, f.clusterIP(2)))
			direct = append(direct, w.connectUDP(w.t, f, host, f.pod(w.Host("b1"))))
		}
	})
	_, err := w.agent().CLI("cleanup")
	wantExit(t, err, 1, fmt.Sprintf("pid %d", w.agent().PID()))
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b1") })
	w.wantAlive(t, "after a refused cleanup", before)
	wantUntouched(byService)

	w.must(w.agent().Stop())
	for n := range 2 { // nothing to clean up is no error
		out, err := w.agent().CLI("cleanup")
		if err != nil {
			t.Fatalf("%v: %s, %s", err, out, string(err.(*exec.ExitError).Stderr))
		}
		if named := strings.Contains(out, fmt.Sprintf("ended %d UDP sockets", len(byService))); named != (n == 0) {
			t.Errorf("cleanup %d prints %q; want %d ended sockets the first time", n, out, len(byService))
		}
		w.wantNothingLeft(t, w.agent())
	}
	wantAllEnded(byService)
	wantUntouched(direct)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), alone) })
	for _, h := range before {
		if got := w.served(h.Conn); got != h.pod {
			t.Errorf("%s, after the cleanup: %s answers, want %s", h.what, got, h.pod)
		}
	}
	w.start()
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b1") })
}

// cleanup stops an agent itself if it is told to, and only then.
func TestCleanupStopsTheAgent(t *testing.T) {
	w := startWorld(t, "node-a")
	out, err := w.agent().CLI("cleanup", "--stop-agent")
	if err != nil || !strings.Contains(out, fmt.Sprintf("stopped the agent with pid %d\n", w.agent().PID())) {
		t.Errorf("%v: %s", err, out)
	}
	if err := w.agent().Wait(); err != nil {
		t.Errorf("the agent did not end as by SIGTERM: %v", err)
	}
	w.wantNothingLeft(t, w.agent())
	if out, err := w.agent().CLI("cleanup", "--stop-agent"); err != nil {
		t.Errorf("without an agent: %v: %s", err, out)
	}
}

// When cleanup returns, nothing runs any more, and a new agent finds a fresh node. It is called here without
// its program, whose exit would give the kernel time.
func TestCleanupTakesEffectAtOnce(t *testing.T) {
	w := newWorld(t, "node-a")
	for range 5 {
		w.start()
		w.must(w.agent().Kill())
		w.must(bpf.Cleanup(w.agent().BPFFS(), nil, agent.Components().BPF()...))
		w.wantNothingLeft(t, w.agent())
	}
}

// K6: in a cgroup namespace, as in a system container, an agent serves the programs of its own cgroup, if told so.
func TestCgroupNamespace(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	own := t.TempDir() // as /sys/fs/cgroup of the container
	w.agent().Wrap = []string{"unshare", "--cgroup", "--mount", "sh", "-c", `mount -t cgroup2 none "$0" && exec "$@"`, own}
	w.agent().Flags = []string{"--cgroup-root="}
	w.must(w.agent().StartOnly())
	if err := w.agent().Wait(); err == nil || !strings.Contains(err.Error(), "(LXC, systemd-nspawn)") {
		t.Errorf("without --cgroup-root: %v", err)
	}
	w.agent().Flags = []string{"--cgroup-root", own}
	w.start()
	for _, f := range []family{ipv4, ipv6} {
		w.wantMeet(t, "node-a", f, f.clusterIP(1), "b1")
		w.wantMeet(t, "a1", f, f.clusterIP(1), alone)
	}
}

// K6: the shortcut is for the processes below --cgroup-root. A restart with another one moves it; connections
// are looked up once, not by both.
func TestCgroupRootIsChangedByARestart(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	roots := map[string][2]string{ // the results of a1 and a3
		w.Host("a1").Cgroup:         {"b1", alone},
		w.Host("a3").Cgroup:         {alone, "b1"},
		w.Host("node-a").CgroupRoot: {"b1", "b1"},
	}
	for root, want := range roots {
		w.agent().Flags = []string{"--cgroup-root", root} // the last one counts
		w.start()
		before := w.counters(w.agent())
		for _, f := range []family{ipv4, ipv6} {
			w.wantMeet(t, "a1", f, f.clusterIP(1), want[0])
			w.wantMeet(t, "a3", f, f.clusterIP(1), want[1])
		}
		now, connections := w.counters(w.agent()), uint64(0)
		for _, met := range want {
			if met == "b1" {
				connections += 2 * (tries + 1)
			}
		}
		if got := now.ConnectBalance - before.ConnectBalance; got != connections || now.ConnectPass != before.ConnectPass {
			t.Errorf("root %s: %d connections sent to a backend, %d passed; want %d and 0",
				root, got, now.ConnectPass-before.ConnectPass, connections)
		}
		w.must(w.agent().Stop())
	}
}

// Removing a cgroup removes its hooks; status says so, and a new agent attaches them again.
func TestCgroupRootIsRemoved(t *testing.T) {
	w := newWorld(t, "node-a")
	root := filepath.Join(w.Host("node-a").CgroupRoot, "short-lived")
	w.must(os.Mkdir(root, 0o755))
	w.agent().Flags = []string{"--cgroup-root", root}
	w.write("web", objects(w.web("web", 1, "b1"))...)
	w.start()
	w.must(os.Remove(root))
	w.must(w.agent().WaitFor("without its cgroup", func(s *api.Status) bool {
		return len(s.Attachments) > 0 && s.Attachments[0].Detached
	}))
	out, err := w.agent().CLI("status")
	wantExit(t, err, 3)
	if !strings.Contains(out, "its cgroup is gone") {
		t.Errorf("status does not say that the cgroup is gone:\n%s", out)
	}
	w.must(w.agent().Stop())
	w.agent().Flags = nil
	w.start()
	w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), "b1")
	w.wantMeet(t, clients, ipv6, ipv6.clusterIP(1), "b1")
}
