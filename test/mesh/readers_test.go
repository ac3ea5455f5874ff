// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
)

// TestReaders: programs that read by splice(2), which does not find messages past TCP, or with flags that have no
// effect on these, and those that send urgent data. Most parts are application and proxy themselves, each as a program
// with another name. Not parallel, because the name is the process's.
func TestReaders(t *testing.T) {
	w := newWorld(t, "--mesh-sockmap")
	w.startAgent()
	w.needSockmap()
	own, err := os.ReadFile("/proc/self/comm")
	w.must(err)
	t.Cleanup(func() { rename(t, strings.TrimSpace(string(own))) })
	pod := w.Host("a1")
	for _, c := range []struct {
		name string
		test func(w *world, pod *lab.Host, listener net.Listener)
	}{
		{"copies", (*world).copies},
		{"reads a request", (*world).readsRequest},
		{"begins late", (*world).beginsLate},
		{"stream", (*world).splicesStream},
		{"urgent", (*world).urgent},
		{"urgent inline", (*world).urgentInline},
		{"waits for all", (*world).waitsForAll},
		{"many names", (*world).manyNames}, // the last, because no other program of the pod can be known after it
	} {
		t.Run(c.name, func(t *testing.T) {
			rename(t, strings.ReplaceAll(c.name, " ", "-"))
			listener, err := pod.Listen("tcp", "127.0.0.1:15001")
			w.must(err)
			t.Cleanup(func() { listener.Close() })
			c.test(w.in(t), pod, listener)
		})
	}
	t.Run("haproxy", func(t *testing.T) { w.in(t).splicingProxy() })
}

// rename gives this program another name.
func rename(t testing.TB, name string) {
	t.Helper()
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		t.Fatal(err)
	}
}

// echoed sends messages to an end that returns them.
func (w *world) echoed(conn net.Conn, messages, size int) {
	w.t.Helper()
	conn.SetDeadline(time.Now().Add(patience))
	for i := range messages {
		message := patterned(i, size)
		got := make([]byte, size)
		if _, err := conn.Write(message); err != nil {
			w.t.Fatalf("message %d: %v", i, err)
		}
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, message) {
			w.t.Fatalf("message %d arrives wrong (%v)", i, err)
		}
	}
}

// splices reports whether the agent knows that this program reads by splice(2).
func (w *world) splices(pod *lab.Host, program string) bool {
	return w.reports(condition.MeshProgramSplices, pod, `"`+program+`"`)
}

// reports reports whether the status has a condition of a pod with a text.
func (w *world) reports(kind *condition.Kind, pod *lab.Host, text string) bool {
	s, err := w.agent.Status()
	w.must(err)
	return slices.ContainsFunc(s.Conditions, func(c condition.Condition) bool {
		return c.Code == kind.Code && c.Object == pod.Cgroup && strings.Contains(c.Message, text)
	})
}

// copies is a proxy that reads only by splice(2), as Go's io.Copy does.
func (w *world) copies(pod *lab.Host, listener net.Listener) {
	before := w.counts()
	application, proxy := w.connect(pod, listener)
	go io.Copy(proxy, proxy)
	w.echoed(application, 100, 1000)
	if now := w.counts(); now.Skipped != before.Skipped {
		w.t.Errorf("%d messages skipped TCP", now.Skipped-before.Skipped)
	}
	w.eventually("the agent names the program", func() bool { return w.splices(pod, "copies") })
}

// readsRequest is a proxy that reads a few messages in the usual way first.
func (w *world) readsRequest(pod *lab.Host, listener net.Listener) {
	for range 3 {
		application, proxy := w.connect(pod, listener)
		for i := range 3 {
			w.oneMessage(application, proxy, i)
		}
		go io.Copy(proxy, proxy)
		w.echoed(application, 100, 1000)
	}
}

// oneMessage is sent and read in the usual way.
func (w *world) oneMessage(from, to net.Conn, i int) {
	w.t.Helper()
	message := patterned(i, 100)
	got := make([]byte, len(message))
	from.SetWriteDeadline(time.Now().Add(patience))
	to.SetReadDeadline(time.Now().Add(patience))
	if _, err := from.Write(message); err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, message) {
		w.t.Fatalf("message %d arrives wrong (%v)", i, err)
	}
}

// beginsLate is a program that reads in the usual way for long, and then by splice(2) while a message waits past TCP.
// This connection is aborted, and the next ones take TCP.
func (w *world) beginsLate(pod *lab.Host, listener net.Listener) {
	application, proxy := w.pair(pod, listener)
	before := w.counts()
	if _, err := application.Write([]byte("hello")); err != nil {
		w.t.Fatal(err)
	}
	if now := w.counts(); now.Skipped == before.Skipped {
		w.t.Fatal("the message does not skip TCP")
	}
	copied := make(chan error, 1)
	go func() { _, err := io.Copy(proxy, proxy); copied <- err }()
	select {
	case err := <-copied:
		if err == nil {
			w.t.Error("the reader ends without an error")
		}
	case <-time.After(patience):
		w.t.Error("the reader waits for ever")
	}
	if _, err := application.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		w.t.Errorf("the application's read returns %v, want ECONNRESET", err)
	}
	if now := w.counts(); now.Stuck != before.Stuck+1 {
		w.t.Errorf("%d sockets are counted as stuck, want 1", now.Stuck-before.Stuck)
	}
	application, proxy = w.connect(pod, listener)
	go io.Copy(proxy, proxy)
	w.echoed(application, 100, 1000)
}

// splicesStream is a program that reads a stream in the usual way at first, and by splice(2) when that seems to be
// worth it, as haproxy does with option splice-auto for HTTP.
func (w *world) splicesStream(pod *lab.Host, listener net.Listener) {
	application, proxy := w.connect(pod, listener)
	data := make([]byte, 1<<20)
	rand.Read(data)
	go func() {
		for rest := data; len(rest) > 0; rest = rest[16384:] {
			application.Write(rest[:16384])
		}
	}()
	got := make([]byte, 48<<10)
	if _, err := io.ReadFull(proxy, got); err != nil {
		w.t.Fatal(err)
	}
	got = append(got, w.spliced(proxy, len(data)-len(got))...)
	if !bytes.Equal(got, data) {
		w.t.Error("what arrives differs from what was sent")
	}
	w.takesTCP(pod, listener)
}

// takesTCP checks that no message of a new connection skips TCP.
func (w *world) takesTCP(pod *lab.Host, listener net.Listener) {
	w.t.Helper()
	before := w.counts()
	application, proxy := w.pair(pod, listener)
	for i := range 20 {
		w.oneMessage(application, proxy, i)
		w.oneMessage(proxy, application, i)
	}
	if now := w.counts(); now.Skipped != before.Skipped || now.Joined != before.Joined {
		w.t.Errorf("%d messages skipped TCP, and %d sockets joined", now.Skipped-before.Skipped, now.Joined-before.Joined)
	}
}

// waitsForAll is a program that reads with MSG_WAITALL.
func (w *world) waitsForAll(pod *lab.Host, listener net.Listener) {
	from, to := w.connect(pod, listener)
	go func() {
		for range 10 {
			from.Write(make([]byte, 1000))
			time.Sleep(time.Millisecond)
		}
	}()
	raw, err := to.SyscallConn()
	w.must(err)
	n := 0
	w.must(raw.Control(func(fd uintptr) {
		w.must(unix.SetNonblock(int(fd), false))
		n, _, err = unix.Recvfrom(int(fd), make([]byte, 10000), unix.MSG_WAITALL)
		w.must(unix.SetNonblock(int(fd), true))
	}))
	if n != 10000 || err != nil {
		w.t.Errorf("%d octets are read (%v)", n, err)
	}
	w.takesTCP(pod, listener)
}

// transfer sends data in messages of many sizes, and reads it.
func (w *world) transfer(from, to net.Conn, size int) {
	w.t.Helper()
	data, got := make([]byte, size), make([]byte, size)
	rand.Read(data)
	go func() {
		for rest := data; len(rest) > 0; {
			n, err := from.Write(rest[:min(len(rest), 1+len(rest)%30000)])
			if err != nil {
				w.t.Errorf("write: %v", err)
				return
			}
			rest = rest[n:]
		}
	}()
	to.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, data) {
		w.t.Errorf("what arrives, %d bytes, differs from what was sent (%v)", n, err)
	}
}

// spliced reads by splice(2).
func (w *world) spliced(conn *net.TCPConn, size int) (all []byte) {
	w.t.Helper()
	r, pipe, err := os.Pipe()
	w.must(err)
	defer r.Close()
	defer pipe.Close()
	raw, err := conn.SyscallConn()
	w.must(err)
	buffer := make([]byte, 65536)
	for len(all) < size {
		var n int64
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, failed = unix.Splice(int(fd), nil, int(pipe.Fd()), nil, len(buffer), unix.SPLICE_F_NONBLOCK)
			return failed != unix.EAGAIN
		})
		if err = errors.Join(err, failed); err != nil || n == 0 {
			w.t.Fatalf("splice(2) ends after %d bytes: %v", len(all), err)
		}
		_, err = io.ReadFull(r, buffer[:n])
		w.must(err)
		all = append(all, buffer[:n]...)
	}
	return all
}

// sendUrgent sends an octet of urgent data.
func (w *world) sendUrgent(conn *net.TCPConn) {
	w.t.Helper()
	raw, err := conn.SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) }))
	w.must(err)
}

// urgent data is received out of band, in both directions.
func (w *world) urgent(pod *lab.Host, listener net.Listener) {
	application, proxy := w.connect(pod, listener)
	for _, ends := range [][2]*net.TCPConn{{application, proxy}, {proxy, application}} {
		from, to := ends[0], ends[1]
		w.oneMessage(from, to, 1)
		w.sendUrgent(from)
		raw, err := to.SyscallConn()
		w.must(err)
		octet := make([]byte, 2)
		w.eventually("urgent data is received", func() bool {
			var n int
			w.must(raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), octet, unix.MSG_OOB|unix.MSG_DONTWAIT) }))
			return err == nil && n == 1
		})
		if octet[0] != '!' {
			w.t.Errorf("%q is urgent", octet)
		}
		w.oneMessage(from, to, 2)
	}
	w.takesTCP(pod, listener)
}

// urgentInline is urgent data that the receiver wants in the stream, where a mark shows its place.
func (w *world) urgentInline(pod *lab.Host, listener net.Listener) {
	from, to := w.connect(pod, listener)
	raw, err := to.SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) }))
	w.must(err)
	if _, err := from.Write([]byte("abc")); err != nil {
		w.t.Fatal(err)
	}
	w.sendUrgent(from)
	if _, err := from.Write([]byte("def")); err != nil {
		w.t.Fatal(err)
	}
	got := make([]byte, 10)
	if n, err := to.Read(got); string(got[:n]) != "abc" {
		w.t.Fatalf("%q is before the mark (%v)", got[:n], err)
	}
	w.eventually("the mark is reached", func() bool {
		var mark int
		w.must(raw.Control(func(fd uintptr) { mark, err = unix.IoctlGetInt(int(fd), unix.SIOCATMARK) }))
		return err == nil && mark == 1
	})
	if _, err := io.ReadFull(to, got[:4]); string(got[:4]) != "!def" {
		w.t.Errorf("%q is after the mark (%v)", got[:4], err)
	}
	w.takesTCP(pod, listener)
}

// splicingProxy: haproxy with its options for splice(2) carries large messages and small ones. Only one end sends at a
// time, and none closes its side meanwhile: then haproxy 2.6 loses data by itself.
func (w *world) splicingProxy() {
	splicing := haproxy
	splicing.config = strings.Replace(haproxy.config, "\toption transparent\n", "\toption transparent\n\toption splice-auto\n\toption splice-request\n\toption splice-response\n", 1)
	s := w.startProxy(splicing, "a2")
	listener := w.listen(bulkPort)
	for i := range 4 {
		from, to := w.through(s.pod, listener, bulkPort)
		for range 50 {
			w.oneMessage(from, to, i)
			w.oneMessage(to, from, i)
		}
		w.transfer(from, to, 8<<20)
		w.transfer(to, from, 8<<20)
	}
	w.eventually("the agent sees that haproxy uses splice(2)", func() bool { return w.splices(s.pod, "haproxy") })
}

// manyNames is a program that changes its name with each message. It cannot fill the table of programs: those of other
// pods have room. What it reads takes TCP.
func (w *world) manyNames(pod *lab.Host, listener net.Listener) {
	application, proxy := w.connect(pod, listener)
	before := w.counts()
	for i := range 100 {
		rename(w.t, fmt.Sprint("name-", i))
		w.oneMessage(application, proxy, i)
		w.oneMessage(proxy, application, i)
	}
	if now := w.counts(); now.Skipped != before.Skipped {
		w.t.Errorf("%d messages to programs that are not known skipped TCP", now.Skipped-before.Skipped)
	}
	own := w.cookieOf(pod)
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.MeshMapMeshPodPrograms), nil)
	w.must(err)
	defer m.Close()
	var key bpf.MeshMeshProgramKey
	var program bpf.MeshMeshProgram
	rows := 0
	for all := m.Iterate(); all.Next(&key, &program); {
		if key.Netns == own {
			rows++
		}
	}
	if rows < 60 || rows > 70 { // 64, the one that counts them, and a few that CPUs have made at once
		w.t.Errorf("the pod has %d rows", rows)
	}
	w.eventually("a condition for a pod with too many programs", func() bool { return w.reports(condition.MeshProgramsFull, pod, "64 programs") })
}
