// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"io"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
)

// loop: a proxy that is taken for an application does not get its own connections back.
func (w *world) loop() {
	w.t.Helper()
	const other = 1500
	w.putProxy(proxyUser, proxyUser, "")
	w.startProxyOf(haproxy, "a1", other)
	w.awaitPods("a1")
	before := w.counts()
	conn := w.open("a1", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{})
	conn.SetDeadline(time.Now().Add(patience))
	conn.Write([]byte("hello\n"))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		w.t.Errorf("%d octets come from somewhere", n)
	}
	// haproxy tries to connect once (retries 0), or twice.
	if now := w.counts(); now.Outbound-before.Outbound != 1 || now.Loops == before.Loops || now.Loops-before.Loops > 2 {
		w.t.Errorf("one connection became %d, and %d were refused", now.Outbound-before.Outbound, now.Loops-before.Loops)
	}
	w.awaitCondition(condition.MeshProxyLoops.Code)
	w.awaitCondition(condition.MeshProxyOther.Code)
}

// listener listens at the proxy's port and connects on demand: itself, or by a thread, a child or a child's child. It
// prints the address from which it has connected, or the error.
const listener = `
import os, socket, sys, threading
def connect():
	try:
		with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as s:
			print(s.getsockname()[0], flush=True)
	except OSError as e:
		print(e.strerror, flush=True)
def child(f):
	pid = os.fork()
	if pid == 0:
		f()
		os._exit(0)
	os.waitpid(pid, 0)
def thread():
	t = threading.Thread(target=connect)
	t.start()
	t.join()
server = socket.create_server(("127.0.0.1", 15001))
print("listens", flush=True)
for line in sys.stdin:
	{"itself": connect, "thread": thread, "child": lambda: child(connect), "thread of a child": lambda: child(thread)}[line.strip()]()
`

// A demanded process does what it is asked to, and answers by a line.
type demanded struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Reader
}

func (d *demanded) ask(what string) (answer string) {
	d.t.Helper()
	if _, err := io.WriteString(d.in, what+"\n"); err != nil {
		d.t.Fatal(err)
	}
	return d.read()
}

func (d *demanded) read() string {
	d.t.Helper()
	line, err := d.out.ReadString('\n')
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// listeningStranger starts a process that listens at the proxy's port and is not known as the proxy.
func (w *world) listeningStranger(to netip.AddrPort) *demanded {
	w.t.Helper()
	cmd := exec.Command("/usr/bin/python3", "-c", listener, to.Addr().String(), strconv.Itoa(int(to.Port())))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1500, Gid: 1500}}
	in, err := cmd.StdinPipe()
	w.must(err)
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.startIn(w.Host("a1").Cgroup, w.Host("a1"), cmd)
	d := &demanded{w.t, in, bufio.NewReader(out)}
	if line := d.read(); line != "listens" {
		w.t.Fatal(line)
	}
	return d
}

// family: connections of a process that listens at the proxy's port are refused, also those of its threads and its
// children. Those of a process at the address of its task_struct are not: then the start time is another one.
func (w *world) family() {
	w.t.Helper()
	w.putProxy(proxyUser, proxyUser, "")
	w.awaitPods("a1")
	process := w.listeningStranger(netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP))
	all := []string{"itself", "thread", "child", "thread of a child"}
	for _, who := range all {
		before := w.counts()
		answer, now := process.ask(who), w.counts()
		if answer != "Connection refused" || now.Loops-before.Loops != 1 || now.Outbound != before.Outbound {
			w.t.Errorf("%s: %s; %d connections were refused and %d redirected", who, answer, now.Loops-before.Loops, now.Outbound-before.Outbound)
		}
	}
	w.startEarlier()
	for _, who := range all {
		if answer := process.ask(who); answer != "127.0.0.1" {
			w.t.Errorf("at the address of a process that has listened, %s: %s, want a connection to the proxy", who, answer)
		}
	}
}

// startEarlier has all processes that have acted as a proxy started a moment earlier than those which are there now.
func (w *world) startEarlier() {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.MeshMapMeshProxies), nil)
	w.must(err)
	defer m.Close()
	rows := map[uint64]uint64{}
	var process, started uint64
	it := m.Iterate()
	for it.Next(&process, &started) {
		rows[process] = started - 1
	}
	w.must(it.Err())
	if len(rows) == 0 {
		w.t.Fatal("no process has acted as a proxy")
	}
	for process, started := range rows {
		w.must(m.Put(process, started))
	}
}
