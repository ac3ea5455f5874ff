// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/sockdiag"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// sockmap: what skips TCP arrives as it would by TCP. The test is application and proxy itself, in a pod whose proxy
// does not run.
func (w *world) sockmap(t *testing.T, pod *lab.Host) {
	t.Helper()
	listener, err := pod.Listen("tcp", "127.0.0.1:15001")
	w.must(err)
	w.t.Cleanup(func() { listener.Close() })
	for _, c := range []struct {
		name string
		test func(t *testing.T, from, to *net.TCPConn)
	}{
		{"random sizes", randomSizes},
		{"the reader waits", backPressure},
		{"half-close", halfCloseUnread},
		{"an answer after the FIN", answerAfterFIN},
		{"unread at the end", unreadAtEnd},
		{"SIOCINQ", bytesToRead},
		{"reset", reset},
		{"closed with messages unread", closedUnread(1000)},
		{"closed with much unread", closedUnread(200000)}, // some of it took TCP
		{"TLS in the kernel", kernelTLS},
	} {
		for _, fromProxy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, from the proxy %v", c.name, fromProxy), func(t *testing.T) {
				application, proxy := w.in(t).pair(pod, listener)
				before := w.counts()
				if fromProxy {
					application, proxy = proxy, application
				}
				c.test(t, application, proxy)
				if now := w.counts(); now.Skipped == before.Skipped {
					t.Errorf("no message skipped TCP: %+v before, %+v now", before, now)
				}
			})
		}
	}
	w.in(t).eventually("no socket waits for the end of its connection", func() bool {
		left := 0
		w.must(pod.Do(func() error {
			all, err := sockdiag.List(unix.IPPROTO_TCP, 1<<unix.BPF_TCP_FIN_WAIT1|1<<unix.BPF_TCP_LAST_ACK|1<<unix.BPF_TCP_CLOSING)
			left = len(all)
			return err
		}))
		return left == 0
	})
	t.Run("MSG_ZEROCOPY", func(t *testing.T) { w.in(t).zerocopy(pod, listener) })
}

// zerocopy sends messages of which the kernel tells when it no longer needs them: they take TCP.
func (w *world) zerocopy(pod *lab.Host, listener net.Listener) {
	w.t.Helper()
	from, to := w.pair(pod, listener)
	raw, err := from.SyscallConn()
	w.must(err)
	message := bytes.Repeat([]byte("z"), 20000)
	before := w.counts()
	w.must(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1)
		if err == nil {
			_, err = unix.SendmsgN(int(fd), message, nil, nil, unix.MSG_ZEROCOPY)
		}
	}))
	w.must(err)
	got := make([]byte, len(message))
	if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, message) {
		w.t.Errorf("the message does not arrive (%v)", err)
	}
	w.eventually("the sender is told that the message was sent", func() bool {
		w.must(raw.Control(func(fd uintptr) {
			_, _, _, _, err = unix.Recvmsg(int(fd), nil, make([]byte, 128), unix.MSG_ERRQUEUE)
		}))
		return err == nil
	})
	if now := w.counts(); now.Skipped != before.Skipped {
		w.t.Errorf("%d messages skipped TCP", now.Skipped-before.Skipped)
	}
}

// kernelTLS is refused for both ends, though a message waits. TCP has other options.
func kernelTLS(t *testing.T, from, to *net.TCPConn) {
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*net.TCPConn{"sender": from, "receiver": to} {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_ULP, "tls"); !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("the %s gets TLS in the kernel: %v", name, err)
			}
			if err := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
				t.Errorf("the %s cannot set another option: %v", name, err)
			}
		})
	}
	if n, err := to.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("%d bytes (%v)", n, err)
	}
}

// connect returns both ends of a new connection between an application and a proxy.
func (w *world) connect(pod *lab.Host, listener net.Listener) (application, proxy *net.TCPConn) {
	w.t.Helper()
	application = w.open(pod.Name, netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{}).(*net.TCPConn)
	accepted, err := listener.Accept()
	w.must(err)
	w.t.Cleanup(func() { accepted.Close() })
	accepted.SetDeadline(time.Now().Add(patience))
	return application, accepted.(*net.TCPConn)
}

// readsUntilKnown is more than the reads after which messages to a program skip TCP.
const readsUntilKnown = 20

// pair returns both ends of a connection whose programs have read enough from another one for messages to skip TCP.
func (w *world) pair(pod *lab.Host, listener net.Listener) (application, proxy *net.TCPConn) {
	w.t.Helper()
	application, proxy = w.connect(pod, listener)
	for i := range readsUntilKnown {
		w.oneMessage(application, proxy, i)
		w.oneMessage(proxy, application, i)
	}
	application.Close()
	proxy.Close()
	return w.connect(pod, listener)
}

func (w *world) counts() *mesh.Counters {
	w.t.Helper()
	c, err := mesh.ReadCounters(w.agent.BPFFS())
	w.must(err)
	return c
}

// moves runs a part of the test, which sends what its first argument says, and expects that of the counters of
// connections one grows, and no other; "": none does.
func (w *world) moves(sends, one string, do func()) {
	w.t.Helper()
	of := func(c *mesh.Counters) map[string]uint64 {
		return map[string]uint64{"outbound": c.Outbound, "inbound": c.Inbound, "dns": c.Dns, "refused": c.Refused, "unnamed": c.Unnamed, "loops": c.Loops, "unknown": c.Unknown}
	}
	before := of(w.counts())
	do()
	grown := of(w.counts())
	maps.DeleteFunc(grown, func(name string, n uint64) bool {
		grown[name] = n - before[name]
		return grown[name] == 0
	})
	if one == "" && len(grown) > 0 || one != "" && (len(grown) != 1 || grown[one] == 0) {
		w.t.Errorf("%s: of the agent's counters of connections there have grown: %s; want: %s alone", sends, node.Counted(grown), cmp.Or(one, "none"))
	}
}

// randomSizes sends messages both ways at once, some so large that they take TCP, to readers that pause now and then.
func randomSizes(t *testing.T, from, to *net.TCPConn) { exchange(t, from, to, 16<<20, true) }

// exchange does so until a total in each direction. halfClose: each side then closes its own direction, while the other
// may go on.
func exchange(t testing.TB, from, to *net.TCPConn, total int, halfClose bool) {
	t.Helper()
	var group sync.WaitGroup
	for i, ends := range [][2]*net.TCPConn{{from, to}, {to, from}} {
		var sent, received [sha256.Size]byte
		random := rand.New(rand.NewPCG(uint64(i), 1))
		group.Go(func() {
			data := make([]byte, total)
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			sent = sha256.Sum256(data)
			for len(data) > 0 {
				n := min(len(data), 1+random.IntN([]int{100, 5000, 200000}[random.IntN(3)]))
				if _, err := ends[0].Write(data[:n]); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				data = data[n:]
			}
			if halfClose {
				ends[0].CloseWrite()
			}
		})
		group.Go(func() {
			hash, buffer := sha256.New(), make([]byte, 30000)
			for n, left := 0, total; halfClose || left > 0; n++ {
				size, err := ends[1].Read(buffer)
				hash.Write(buffer[:size])
				left -= size
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if n%500 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			hash.Sum(received[:0])
		})
		defer func() {
			if sent != received {
				t.Errorf("direction %d: what arrived differs from what was sent", i)
			}
		}()
	}
	group.Wait()
}

// backPressure sends until the reader, which does not read, holds it up. Then all of it arrives.
func backPressure(t *testing.T, from, to *net.TCPConn) {
	message := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	sent := 0
	for {
		from.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := from.Write(message)
		sent += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
		if sent > 64<<20 {
			t.Fatalf("the sender was not held up after %d bytes", sent)
		}
	}
	from.CloseWrite()
	got, err := io.ReadAll(to)
	for i := range got {
		if got[i] != message[i%len(message)] {
			t.Fatalf("byte %d of %d differs", i, sent)
		}
	}
	if len(got) != sent || err != nil {
		t.Errorf("%d bytes of %d arrived (%v)", len(got), sent, err)
	}
}

// halfCloseUnread ends both directions before anything is read.
func halfCloseUnread(t *testing.T, from, to *net.TCPConn) {
	message := bytes.Repeat([]byte("x"), 1000)
	for range 10 {
		if _, err := from.Write(message); err != nil {
			t.Fatal(err)
		}
	}
	from.Close()
	time.Sleep(10 * time.Millisecond)
	if got, err := io.ReadAll(to); err != nil || len(got) != 10*len(message) {
		t.Errorf("%d bytes arrived (%v)", len(got), err)
	}
}

// unreadAtEnd reads only after both ends have closed their side.
func unreadAtEnd(t *testing.T, from, to *net.TCPConn) {
	if _, err := from.Write(make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	to.CloseWrite()
	time.Sleep(10 * time.Millisecond)
	from.Close()
	time.Sleep(10 * time.Millisecond)
	if got, err := io.ReadAll(to); err != nil || len(got) != 5000 {
		t.Errorf("%d bytes arrive (%v)", len(got), err)
	}
}

// bytesToRead asks how much there is to read, as nginx does: of messages that skipped TCP, of those and what took TCP
// after them, after some of them are read, and of what took TCP alone.
func bytesToRead(t *testing.T, from, to *net.TCPConn) {
	raw, err := to.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	unread := 0
	ask := func(when string) {
		t.Helper()
		raw.Control(func(fd uintptr) {
			if n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ); n != unread || err != nil {
				t.Errorf("%s: %d bytes are to be read (%v), want %d", when, n, err, unread)
			}
		})
	}
	write := func(n int) {
		t.Helper()
		if _, err := from.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		unread += n
	}
	read := func(n int) {
		t.Helper()
		if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		unread -= n
	}
	ask("nothing")
	write(5000)
	write(300)
	ask("two messages")
	read(1000)
	ask("the rest of two messages")
	for range 20 { // more messages than may wait past TCP
		write(100)
	}
	time.Sleep(10 * time.Millisecond)
	ask("messages, and what took TCP")
	read(4300)
	ask("some messages, and what took TCP")
	read(1900)
	ask("the rest of what took TCP")
	from.CloseWrite()
	time.Sleep(10 * time.Millisecond)
	ask("the rest of what took TCP, and a FIN")
	read(100)
	ask("a FIN")
}

// answerAfterFIN answers an end that has closed its side, and closes before that has read the answer.
func answerAfterFIN(t *testing.T, from, to *net.TCPConn) {
	request, answer := []byte("request"), bytes.Repeat([]byte("y"), 5000)
	if _, err := from.Write(request); err != nil {
		t.Fatal(err)
	}
	from.CloseWrite()
	if got, err := io.ReadAll(to); err != nil || !bytes.Equal(got, request) {
		t.Errorf("the request arrives as %q (%v)", got, err)
	}
	if _, err := to.Write(answer); err != nil {
		t.Fatal(err)
	}
	to.Close()
	time.Sleep(10 * time.Millisecond)
	if got, err := io.ReadAll(from); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("%d bytes of the answer arrive (%v)", len(got), err)
	}
}

// closedUnread closes a socket with data unread: the other end learns of it by ECONNRESET, as by TCP.
func closedUnread(size int) func(t *testing.T, from, to *net.TCPConn) {
	return func(t *testing.T, from, to *net.TCPConn) {
		if _, err := from.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write([]byte("an answer")); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		to.Close()
		answer := make([]byte, 100)
		if n, err := from.Read(answer); string(answer[:n]) != "an answer" {
			t.Errorf("%q is read (%v)", answer[:n], err)
		}
		if n, err := from.Read(answer); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%d octets and %v, want ECONNRESET", n, err)
		}
		if _, err := from.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a write returns %v, want EPIPE", err)
		}
	}
}

// reset aborts the connection.
func reset(t *testing.T, from, to *net.TCPConn) {
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := to.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Fatalf("%d bytes (%v)", n, err)
	}
	from.SetLinger(0)
	from.Close()
	if n, err := to.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d bytes and %v, want ECONNRESET", n, err)
	}
}
