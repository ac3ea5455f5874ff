// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

// patience bounds all waiting. No result depends on it: what works takes milliseconds.
const patience = time.Minute

// A world is a lab with a server in each pod, and an agent on node-a.
type world struct {
	*lab.Lab
	t      testing.TB // of this part
	whole  testing.TB
	folder *node.Folder
	agent  *node.Agent
	// applications are those of pods whose sockets are another program's.
	applications map[string]applications
}

// newWorld makes a world whose agent does not run yet, with the sidecar shortcut for the pods of node-a.
func newWorld(t testing.TB, flags ...string) *world {
	t.Helper()
	w := &world{Lab: lab.New(t), t: t, whole: t, folder: &node.Folder{Path: t.TempDir()}}
	if _, err := os.Stat(envoyProgram()); err != nil {
		t.Fatalf("%v: run scripts/envoy", err)
	}
	w.must(w.StartServers())
	w.must(w.folder.Put("cluster", node.Cluster(w.Lab)...))
	var cgroups []string
	for _, pod := range w.Host("node-a").Pods() {
		cgroups = append(cgroups, pod.Cgroup)
	}
	w.agent = &node.Agent{Host: w.Host("node-a"), Program: program, Manifests: w.folder.Path, MaxFlows: 16384, Log: &node.Log{},
		Flags: append([]string{"--edge-mode=off", "--mesh-cgroups=" + strings.Join(cgroups, ",")}, flags...)}
	t.Cleanup(func() {
		if err := w.agent.Kill(); err != nil {
			t.Errorf("the agent ended before it was killed: %v", err)
		}
		if t.Failed() {
			t.Logf("the agent printed:\n%s", w.agent.Log)
		}
	})
	return w
}

// startAgent starts the agent and waits until the pods are served.
func (w *world) startAgent() {
	w.t.Helper()
	w.must(w.agent.Start())
	w.eventually("all pods are served", func() bool {
		s, err := w.agent.Status()
		if err != nil {
			return false
		}
		for _, c := range s.Components {
			if c.Name == "mesh" && served(c.State) {
				return true
			}
		}
		return false
	})
}

// served reports whether a state says that all pods are served.
func served(state string) bool {
	var some, all int
	n, err := fmt.Sscanf(state, "%d of %d pods", &some, &all)
	return n == 2 && err == nil && some == all
}

// needSockmap skips a test under a kernel under which messages have to take TCP.
func (w *world) needSockmap() {
	w.t.Helper()
	needs.Kernel(w.t, needs.Sockmap)
	s, err := w.agent.Status()
	w.must(err)
	for _, c := range s.Conditions {
		if c.Code == condition.MeshSockmapUnavailable.Code {
			w.t.Fatalf("the kernel lets messages skip TCP, and the agent says: %s", c.Message)
		}
	}
}

// in is the world for a subtest.
func (w *world) in(t testing.TB) *world {
	sub := *w
	sub.t = t
	return &sub
}

// must ends the test if a step fails that is not under test.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits until ok returns true.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited %v in vain for this: %s\n%s", patience, what, node.Says(w.agent))
		}
	}
}

// folderOf makes a folder that belongs to a user. Those of testing.T are closed to others.
func (w *world) folderOf(user int) string {
	w.t.Helper()
	folder, err := os.MkdirTemp("", "beeline-mesh-")
	w.must(err)
	w.t.Cleanup(func() { os.RemoveAll(folder) })
	w.must(os.Chown(folder, user, user))
	return folder
}

// listens reports whether a TCP socket of a host listens at a port, of any family.
func (w *world) listens(host *lab.Host, port int) (found bool) {
	w.t.Helper()
	w.must(host.Do(func() error {
		for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
					found = true
				}
			}
		}
		return nil
	}))
	return found
}

// dial connects from a host.
func (w *world) dial(host string, to netip.AddrPort, options lab.DialOptions) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	conn, err := w.Host(host).DialWith(ctx, options, "tcp", to.String())
	if err == nil {
		conn.SetDeadline(time.Now().Add(patience / 2))
		w.t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// open is dial for a connection that has to work.
func (w *world) open(host string, to netip.AddrPort, options lab.DialOptions) net.Conn {
	w.t.Helper()
	conn, err := w.dial(host, to, options)
	w.must(err)
	return conn
}

// ask sends a request over a connection.
func (w *world) ask(conn net.Conn) lab.Answer {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, "hello")
	w.must(err)
	return answer
}

// handshakes returns the number of handshakes whose destination the proxy is still to learn.
func (w *world) handshakes() (n int) {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.MeshMapMeshHandshakes), nil)
	w.must(err)
	defer m.Close()
	var k bpf.MeshMeshTuple
	var v bpf.MeshMeshHandshake
	it := m.Iterate()
	for it.Next(&k, &v) {
		n++
	}
	w.must(it.Err())
	return n
}

func local(conn net.Conn) netip.Addr {
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

func remote(conn net.Conn) netip.AddrPort {
	a := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// run runs a command on a host and returns what it prints.
func (w *world) run(host string, argv ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := w.Host(host).Command(ctx, argv...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %s: %v: %s", host, strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// startIn starts a process in a cgroup and in the network namespace of a host. It ends with this part.
func (w *world) startIn(cgroup string, host *lab.Host, cmd *exec.Cmd) {
	w.t.Helper()
	directory, err := os.Open(cgroup)
	w.must(err)
	defer directory.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(directory.Fd())
	w.must(host.Do(cmd.Start))
	w.t.Cleanup(func() { end(cmd) })
}

// end kills a process unless it has ended.
func end(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// runIn runs a command in a cgroup and the network namespace of a host, and returns what it prints.
func (w *world) runIn(cgroup string, host *lab.Host, argv ...string) string {
	w.t.Helper()
	var out strings.Builder
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	w.startIn(cgroup, host, cmd)
	if err := cmd.Wait(); err != nil {
		w.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, &out)
	}
	return out.String()
}
