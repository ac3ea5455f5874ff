// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A tcpConn is a TCP connection of this program, or of another one in a pod.
type tcpConn interface {
	net.Conn
	CloseWrite() error
	SetLinger(seconds int) error
}

// applications open the sockets of a pod's application.
type applications interface {
	connect(to netip.AddrPort) (tcpConn, error)
	listen(port uint16) (net.Listener, error)
}

// ownSockets are those of this program in a host.
type ownSockets struct {
	w    *world
	host *lab.Host
}

func (o ownSockets) connect(to netip.AddrPort) (tcpConn, error) {
	conn, err := o.w.dial(o.host.Name, to, lab.DialOptions{})
	if err != nil {
		return nil, err
	}
	return conn.(tcpConn), nil
}

func (o ownSockets) listen(port uint16) (net.Listener, error) {
	return o.host.Listen("tcp", fmt.Sprintf("[::]:%d", port))
}

// libraryOf returns the preload library of the host stack.
func libraryOf(t testing.TB) string {
	t.Helper()
	root, err := node.Sources()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(root, "bin", offline.LibraryName)
	if _, err := os.Stat(library); err != nil {
		t.Fatalf("%v (`make hoststack` builds it)", err)
	}
	return library
}

// preloadedBy is the command that runs another one with the library, and with the servers on loopback that pods get.
func preloadedBy(library string, more ...string) []string {
	return append([]string{"env", "LD_PRELOAD=" + library, "BEELINE_HOSTSTACK_INCLUDE=127.0.0.1:15001,[::1]:15001"}, more...)
}

// withLibrary is the same proxy with the library.
func (p proxy) withLibrary(environment []string) proxy {
	plain := p.argv
	p.argv = func(folder, config string) []string {
		return append(environment[:len(environment):len(environment)], plain(folder, config)...)
	}
	return p
}

// remoteSockets are those of testdata/sockets.py in a pod.
type remoteSockets struct {
	path string
	cmd  *lab.Cmd
}

// startSockets starts testdata/sockets.py in a pod, by a command before it.
func (w *world) startSockets(host *lab.Host, environment ...string) *remoteSockets {
	w.t.Helper()
	script, err := filepath.Abs("testdata/sockets.py")
	w.must(err)
	r := &remoteSockets{path: filepath.Join(w.folderOf(0), "socket")}
	r.cmd = host.Command(context.Background(), append(environment[:len(environment):len(environment)], "/usr/bin/python3", script, r.path)...)
	log := &node.Log{}
	r.cmd.Stderr = log
	out, err := r.cmd.StdoutPipe()
	w.must(err)
	w.must(r.cmd.Start())
	w.t.Cleanup(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
		if w.t.Failed() && log.String() != "" {
			w.t.Logf("sockets.py in %s printed:\n%s", host.Name, log)
		}
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		w.t.Fatalf("sockets.py in %s: %v: %s", host.Name, err, log)
	}
	return r
}

// A channel carries one request at a time.
type channel struct {
	sync.Mutex
	conn net.Conn
}

func (r *remoteSockets) channel() (*channel, error) {
	conn, err := net.Dial("unix", r.path)
	return &channel{conn: conn}, err
}

// call makes a call at a socket, with a time limit for what waits.
func (c *channel) call(name byte, socket uint32, limit time.Duration, data []byte) ([]byte, error) {
	c.Lock()
	defer c.Unlock()
	request := binary.LittleEndian.AppendUint32([]byte{name}, socket)
	request = binary.LittleEndian.AppendUint32(request, uint32(limit.Milliseconds()))
	request = binary.LittleEndian.AppendUint32(request, uint32(len(data)))
	if _, err := c.conn.Write(append(request, data...)); err != nil {
		return nil, fmt.Errorf("sockets.py: %w", err)
	}
	var answer [8]byte
	if _, err := io.ReadFull(c.conn, answer[:]); err != nil {
		return nil, fmt.Errorf("sockets.py: %v", err)
	}
	result := make([]byte, binary.LittleEndian.Uint32(answer[4:]))
	if _, err := io.ReadFull(c.conn, result); err != nil {
		return nil, fmt.Errorf("sockets.py: %v", err)
	}
	if code := binary.LittleEndian.Uint32(answer[:]); code != 0 {
		return nil, syscall.Errno(code)
	}
	return result, nil
}

func (r *remoteSockets) connect(to netip.AddrPort) (tcpConn, error) {
	c, err := r.channel()
	if err != nil {
		return nil, err
	}
	answer, err := c.call('c', 0, patience/2, fmt.Appendf(nil, "%s %d", to.Addr(), to.Port()))
	if err != nil {
		c.conn.Close()
		return nil, err
	}
	return r.newConn(c, answer)
}

func (r *remoteSockets) listen(port uint16) (net.Listener, error) {
	c, err := r.channel()
	if err != nil {
		return nil, err
	}
	l := &remoteListener{from: r, port: port, channel: c}
	answer, err := c.call('l', 0, 0, fmt.Append(nil, port))
	if err == nil {
		_, err = fmt.Sscan(string(answer), &l.socket)
	}
	return l, err
}

// pollTime is how long another program waits before it looks whether its socket was closed.
const pollTime = 100 * time.Millisecond

type remoteListener struct {
	from    *remoteSockets
	port    uint16
	socket  uint32
	channel *channel
	closed  atomic.Bool
}

func (l *remoteListener) Accept() (net.Conn, error) {
	for !l.closed.Load() {
		answer, err := l.channel.call('a', l.socket, pollTime, nil)
		if err == syscall.EAGAIN || err == syscall.ECONNRESET { // nobody connects, or the client has reset the connection
			continue
		}
		if err != nil {
			return nil, err
		}
		c, err := l.from.channel()
		if err != nil {
			return nil, err
		}
		return l.from.newConn(c, answer)
	}
	return nil, net.ErrClosed
}

func (l *remoteListener) Close() error {
	l.closed.Store(true)
	_, err := l.channel.call('x', l.socket, 0, nil)
	l.channel.conn.Close()
	return err
}

func (l *remoteListener) Addr() net.Addr { return &net.TCPAddr{Port: int(l.port)} }
