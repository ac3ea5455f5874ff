// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
)

const server = "127.0.0.1:7000"

// A stream is a client of testdata/stream.py under load.
type stream struct {
	*run
	local netip.AddrPort
}

func (w *world) serve(pod string) *run {
	w.t.Helper()
	r := w.startPreloaded(pod, python, "testdata/stream.py", "serve", "7000")
	return r
}

// stream starts a client, again until the server listens.
func (w *world) stream(pod string) *stream {
	w.t.Helper()
	var s *stream
	w.eventually("the server listens", func() bool {
		r := w.startPreloaded(pod, python, "testdata/stream.py", "send", "7000")
		local, err := netip.ParseAddrPort(r.line())
		s = &stream{r, local}
		return err == nil
	})
	return s
}

// end ends a client, and checks what came back. It returns the number of blocks.
func (s *stream) end() int {
	s.w.t.Helper()
	s.stdin.Close()
	var result struct {
		Sent, Blocks int
		Wrong        bool
	}
	text := s.line()
	if err := json.Unmarshal([]byte(text), &result); err != nil || result.Wrong || result.Sent != result.Blocks || result.Blocks == 0 {
		s.w.t.Errorf("a stream ended with %s (%v), want as many blocks as were sent, all right", text, err)
	}
	return result.Blocks
}

// is reports whether both ends of a stream are listed once, and both directions are carried by `by`.
func (w *world) is(by string, s *stream, of *run) bool {
	w.t.Helper()
	r := w.report()
	ends := map[string]int{}
	for role, pid := range map[string]int{"connector": s.Process.Pid, "acceptor": of.Process.Pid} {
		for _, one := range find(r, pid).Sessions {
			if one == (hoststack.Session{PID: pid, Role: role, Server: netip.MustParseAddrPort(server), Client: s.local, SendsBy: by, ReceivesBy: by}) {
				ends[role]++
			}
		}
	}
	return ends["connector"] == 1 && ends["acceptor"] == 1
}

// TestSwitch: connections on rings are listed and counted; switched off under load they go on by the kernel, without a
// wrong octet; switched on again, new ones use rings. A killed program leaves nothing.
func TestSwitch(t *testing.T) {
	w := newWorld(t)
	of := w.serve("a1")
	first := w.stream("a1")
	w.eventually("a connection is on rings", func() bool { return w.is("rings", first, of) })
	if p := w.programOf(first.Process.Pid); p.State != hoststack.On || p.Pod != w.Host("a1").Cgroup || p.Name != "python3" || p.Counters.Attached != 1 {
		t.Errorf("the client: %+v", p)
	}
	w.eventually("octets are counted", func() bool {
		return w.metric("beeline_mesh_hoststack_bytes_total", "direction", "sent") > 1e6 && w.metric("beeline_mesh_hoststack_bytes_total", "direction", "received") > 1e6
	})
	if n := w.metric("beeline_mesh_hoststack_connections", "", ""); n != 2 {
		t.Errorf("%v connections in the metrics, want both ends of one", n)
	}

	w.startAgent("off")
	w.eventually("the connection is on the kernel", func() bool { return w.is("kernel-again", first, of) })
	second := w.stream("a1")
	time.Sleep(3 * time.Second) // longer than the agent needs for programs that start
	if p := w.programOf(second.Process.Pid); p.State != hoststack.Off || len(p.Sessions) != 0 && p.Sessions[0].SendsBy == "rings" {
		t.Errorf("a program that started later: %+v, want it to be switched off", p)
	}
	if n := w.metric("beeline_mesh_hoststack_returned_total", "", ""); n < 1 {
		t.Errorf("%v connections returned to the kernel", n)
	}
	status, err := w.agent.Status()
	w.must(err)
	if !slices.ContainsFunc(status.Components, func(c api.ComponentStatus) bool {
		return strings.Contains(c.State, "host stack off: 3 programs, ")
	}) {
		t.Errorf("the status does not tell of three programs that are switched off: %+v", status.Components)
	}

	w.startAgent("on")
	w.eventually("all are switched on", func() bool { return w.programOf(second.Process.Pid).State == hoststack.On })
	third := w.stream("a1")
	w.eventually("a new connection is on rings", func() bool { return w.is("rings", third, of) })
	if !w.is("kernel-again", first, of) {
		t.Error("the first connection did not stay on the kernel")
	}
	first.end()
	second.end()
	before := w.programOf(of.Process.Pid).Counters.Received
	w.must(third.Process.Kill())
	w.eventually("nothing is left of a killed program", func() bool {
		return w.programOf(third.Process.Pid).PIDs == nil && len(w.programOf(of.Process.Pid).Sessions) == 0
	})
	if now := w.programOf(of.Process.Pid).Counters.Received; now < before {
		t.Errorf("the server's counters went from %d to %d", before, now)
	}
}

// TestForked: processes that share their connections by fork are one program.
func TestForked(t *testing.T) {
	w := newWorld(t)
	of := w.serve("a1")
	parent := w.startPreloaded("a1", python, "-c", `
import os, socket, time
def connected():
    c = socket.create_connection(("127.0.0.1", 7000))
    for _ in range(20):
        c.sendall(b"x")
        c.recv(1)
    return c
while True:
    try:
        a = connected()
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
child = os.fork()
if child == 0:
    b = connected()
    print(os.getpid(), flush=True)
    time.sleep(600)
os.waitpid(child, 0)
time.sleep(600)`)
	var child int
	w.must(json.Unmarshal([]byte(parent.line()), &child))
	w.eventually("parent and child are one program with two connections", func() bool {
		p := w.programOf(child)
		return len(p.PIDs) == 2 && p.PIDs[0] == min(parent.Process.Pid, child) && len(p.Sessions) == 2
	})
	killed := w.programOf(child).Sessions
	w.must(syscall.Kill(child, syscall.SIGKILL))
	w.eventually("the connection of the killed child is not listed", func() bool {
		p := w.programOf(parent.Process.Pid)
		return len(p.PIDs) == 1 && len(p.Sessions) == 1 && p.Sessions[0].PID == parent.Process.Pid
	})
	if len(killed) != 2 {
		t.Errorf("%+v", killed)
	}
	w.eventually("the server has lost one", func() bool { return len(w.programOf(of.Process.Pid).Sessions) == 1 })
}

// TestPrograms: programs that cannot use the library, must not, or lie about it are named, without harm to others.
func TestPrograms(t *testing.T) {
	w := newWorld(t)
	of := w.serve("a1")
	s := w.stream("a1")
	folder := w.folder()
	absurd := w.startPreloaded("a1", python, "-c", absurdPage)
	for name, c := range map[string]struct {
		run   *run
		state hoststack.State
		why   string
	}{
		"static":         {w.startPreloaded("a1", w.compile(folder, "static", "-static")), hoststack.NotLoaded, "a static program"},
		"Go":             {w.startPreloaded("a1", w.goProgram()...), hoststack.NotLoaded, "a static Go program"},
		"set-user-ID":    {w.start("a1", w.library, 65534, w.setUserID(folder), "600"), hoststack.NotLoaded, "set-user-ID"},
		"no such file":   {w.start("a1", filepath.Join(folder, "libbeeline_hoststack.so"), 0, "/bin/sleep", "600"), hoststack.NotLoaded, "the loader did not load it"},
		"no connection":  {w.startPreloaded("a1", "/bin/sleep", "600"), hoststack.Idle, ""},
		"io_uring":       {w.startPreloaded("a1", python, "-c", ioUring), hoststack.Idle, ""},
		"not a page":     {w.startPreloaded("a1", python, "-c", notAPage), hoststack.Unread, "its size is not sealed"},
		"absurd numbers": {absurd, hoststack.On, ""},
	} {
		w.eventually(name, func() bool {
			p := w.programOf(c.run.Process.Pid)
			return p.State == c.state && strings.Contains(p.Why, c.why) && p.IOUring == (name == "io_uring")
		})
	}
	others := w.start("a1", "", 0, "/bin/sleep", "600")
	if p := w.programOf(others.Process.Pid); p.PIDs != nil {
		t.Errorf("a program that has nothing to do with the library is listed: %+v", p)
	}
	status, err := w.agent.Status()
	w.must(err)
	for _, kind := range []*condition.Kind{condition.MeshHostStackIOUring, condition.MeshHostStackUnread} {
		if !status.Conditions.Has(kind) {
			t.Errorf("no condition %s in %v", kind.Code, status.Conditions)
		}
	}
	for _, arguments := range [][]string{{"--agent-socket", w.agent.Socket()}, {"--all-processes"}, {"--pid", fmt.Sprint(s.Process.Pid, ",", absurd.Process.Pid)}} {
		out, err := w.Host("node-a").Command(t.Context(), append([]string{program, "mesh", "sessions", "-o", "wide"}, arguments...)...).Output()
		w.must(err)
		if text := string(out); strings.ContainsAny(text, "\x1b\r") || !strings.Contains(text, `\u001b[2J`) || !strings.Contains(text, s.local.String()) {
			t.Errorf("%v printed %q", arguments, out)
		}
	}
	if !w.is("rings", s, of) {
		t.Error("the connection of the others is not on rings")
	}
	s.end()
}
