// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// Sizes of the tests under load, and those with -short.
const (
	bulkBytes, bulkBytesShort      = 256 << 20, 64 << 20
	shortConns, shortConnsShort    = 10000, 2000
	streamConns                    = 200
	sockmapConns                   = 5000 // each has two sockets in the sockmap
	bulkPort, streamPort, loadPort = 7001, 7002, 7003
)

func sizeOf(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// TestLoad: real proxies under load, with messages past TCP where the kernel can.
func TestLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-sockmap")
	w.startAgent()
	for _, p := range []proxy{envoy, haproxy} {
		t.Run(p.name, func(t *testing.T) {
			w := w.in(t)
			s := w.startProxy(p, map[string]string{"envoy": "a1", "haproxy": "a2"}[p.name])
			t.Run("bulk", func(t *testing.T) { w.in(t).bulk(s) })
			t.Run("short", func(t *testing.T) { w.in(t).short(s, sizeOf(shortConns, shortConnsShort)) })
			t.Run("streams", func(t *testing.T) { w.in(t).streams(s) })
			t.Run("proxy killed", func(t *testing.T) { w.in(t).killedUnderLoad(s) })
		})
	}
	t.Run("members of the sockmap", func(t *testing.T) { w.in(t).membersOutliveTheAgent(t) })
}

// through opens a connection from a pod to a listener of b1, by the pod's proxy.
func (w *world) through(pod *lab.Host, listener net.Listener, port uint16) (from, to *net.TCPConn) {
	w.t.Helper()
	from = w.open(pod.Name, netip.AddrPortFrom(w.Host("b1").Addr4, port), lab.DialOptions{}).(*net.TCPConn)
	accepted, err := listener.Accept()
	w.must(err)
	w.t.Cleanup(func() { accepted.Close() })
	if !local(from).IsLoopback() {
		w.t.Fatalf("a connection from %s does not go through the proxy", local(from))
	}
	from.SetDeadline(time.Time{})
	return from, accepted.(*net.TCPConn)
}

func (w *world) listen(port uint16) net.Listener {
	w.t.Helper()
	listener, err := w.Host("b1").Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
	w.must(err)
	w.t.Cleanup(func() { listener.Close() })
	return listener
}

// bulk transfers data both ways at once through the proxy. Neither side closes before both have all: on a busy machine
// haproxy 2.6 resets both sides if one has closed its direction while megabytes of the other are under way, with and
// without sockmap.
func (w *world) bulk(s *sidecar) {
	from, to := w.through(s.pod, w.listen(bulkPort), bulkPort)
	exchange(w.t, from, to, sizeOf(bulkBytes, bulkBytesShort), false)
}

// A stream is a connection through the proxy, and its other end.
type stream struct{ client, server *net.TCPConn }

// streams: connections on which both ends send whenever they like, as gRPC's do. They are idle meanwhile, while the
// agent is killed and another one takes over, and go on.
func (w *world) streams(s *sidecar) {
	listener := w.listen(streamPort)
	all := make([]stream, streamConns)
	for i := range all {
		all[i].client, all[i].server = w.through(s.pod, listener, streamPort)
	}
	w.talk(all)
	w.must(w.agent.Kill())
	w.talk(all)
	w.startAgent()
	w.talk(all)
}

// talk sends messages of many sizes both ways at once over each stream.
func (w *world) talk(all []stream) {
	w.t.Helper()
	var group sync.WaitGroup
	for i, s := range all {
		for direction, ends := range [][2]*net.TCPConn{{s.client, s.server}, {s.server, s.client}} {
			sizes := make([]int, 20)
			for j := range sizes {
				sizes[j] = 1 + (i*37+j*j*101+direction*13)%3000
			}
			group.Go(func() {
				for _, n := range sizes {
					if _, err := ends[0].Write(patterned(i, n)); err != nil {
						w.t.Errorf("stream %d: %v", i, err)
						return
					}
				}
			})
			group.Go(func() {
				ends[1].SetReadDeadline(time.Now().Add(patience))
				for _, n := range sizes {
					got := make([]byte, n)
					if _, err := io.ReadFull(ends[1], got); err != nil || string(got) != string(patterned(i, n)) {
						w.t.Errorf("stream %d: a message of %d bytes arrives wrong (%v)", i, n, err)
						return
					}
				}
			})
		}
	}
	group.Wait()
}

// patterned is a message that differs between streams and sizes.
func patterned(stream, n int) []byte {
	message := make([]byte, n)
	for i := range message {
		message[i] = byte(i*7 + stream + n)
	}
	return message
}

// killedUnderLoad kills the proxy while applications connect, and starts it again. No connection gets past it, and
// all work again.
func (w *world) killedUnderLoad(s *sidecar) {
	w.serveLines(loadPort)
	ctx, stop := context.WithCancel(w.t.Context())
	var group sync.WaitGroup
	var answered, failed atomic.Int64
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				switch err := w.oneRequest(s.pod); {
				case err == nil:
					answered.Add(1)
				case errors.Is(err, errBypass):
					w.t.Error(err)
					return
				case ended(err):
					failed.Add(1)
				default:
					w.t.Errorf("a request failed in an unexpected way: %v", err)
					return
				}
			}
		})
	}
	more := func(what string, counter *atomic.Int64) {
		before := counter.Load()
		w.eventually(what, func() bool { return counter.Load() > before+50 || w.t.Failed() })
	}
	more("requests are answered", &answered)
	s.end()
	more("requests fail without a proxy", &failed)
	*s = *w.startProxyAgain(s)
	more("requests are answered by the new proxy", &answered)
	lost := failed.Load()
	more("requests are answered after that", &answered)
	stop()
	group.Wait()
	if now := failed.Load(); now-lost > 8 {
		w.t.Errorf("%d requests failed while the proxy ran", now-lost)
	}
}

var errBypass = errors.New("a connection does not go through the proxy")

// ended reports whether an error is one of a connection whose other end is gone.
func ended(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// oneRequest asks the server of serveLines by a connection of its own.
func (w *world) oneRequest(pod *lab.Host) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pod.Dial(ctx, "tcp", netip.AddrPortFrom(w.Host("b1").Addr4, loadPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if !local(conn).IsLoopback() {
		return errBypass
	}
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 4))
	return err
}

// serveLines answers each connection to b1 by what arrives.
func (w *world) serveLines(port uint16) {
	listener := w.listen(port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
}

// membersOutliveTheAgent: the sockets in the sockmap carry on while the agent is killed, and while another one replaces
// the programs. The test is application and proxy itself.
func (w *world) membersOutliveTheAgent(t *testing.T) {
	w.needSockmap()
	listener, err := w.Host("a3").Listen("tcp", "127.0.0.1:15001")
	w.must(err)
	defer listener.Close()
	w.pair(w.Host("a3"), listener)
	all := make([]stream, sockmapConns)
	for i := range all {
		all[i].client, all[i].server = w.connect(w.Host("a3"), listener)
		w.oneMessage(all[i].client, all[i].server, i)
		w.oneMessage(all[i].server, all[i].client, i)
	}
	check := func(when string) {
		t.Log(when)
		before := w.counts()
		for i, s := range all {
			w.oneMessage(s.client, s.server, i)
			w.oneMessage(s.server, s.client, i)
		}
		if n := w.counts().Skipped - before.Skipped; n < 2*sockmapConns {
			t.Errorf("%s: %d of %d messages skipped TCP", when, n, 2*sockmapConns)
		}
	}
	check("at first")
	w.must(w.agent.Kill())
	check("without an agent")
	w.startAgent()
	check("with another agent")
}
