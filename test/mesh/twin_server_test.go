// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"beeline.io/beeline/test/lab"
)

const twinAnswer, twinGreeting = 3000, "hello"

// twinServer serves each connection as its first octet says, and HTTP.
func (w *world) twinServer(host *lab.Host) {
	w.t.Helper()
	for _, port := range []uint16{twinPort, twinFirst, twinSlow, twinExcluded, twinTunnel} {
		w.serve(host, port, func(conn tcpConn) { serveTwin(conn, port == twinFirst) })
	}
	w.serveHTTP(w.twinListener(host, twinHTTP))
}

func (w *world) twinListener(host *lab.Host, port uint16) net.Listener {
	w.t.Helper()
	listener, err := w.applicationsOf(host).listen(port)
	w.must(err)
	w.t.Cleanup(func() { listener.Close() })
	return listener
}

// serve has a function serve each connection to a port of a host.
func (w *world) serve(host *lab.Host, port uint16, serve func(tcpConn)) {
	w.t.Helper()
	listener := w.twinListener(host, port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn.(tcpConn))
		}
	}()
}

// twinSeen has the channels, by the ids of connections, to which the server says how they ended.
var twinSeen sync.Map

// slowWritten has the numbers of octets that the server has written, by the ids of connections.
var slowWritten sync.Map

func serveTwin(conn tcpConn, first bool) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if first {
		io.WriteString(conn, twinGreeting)
	}
	how := []byte{0}
	if _, err := io.ReadFull(conn, how); err != nil {
		return
	}
	switch how[0] {
	case 'e':
		echo(conn)
	case 'u': // the rest has come, and is not read
		time.Sleep(50 * time.Millisecond)
	case 'r':
		conn.SetLinger(0)
	case 'h':
		io.Copy(io.Discard, conn)
		conn.Write(make([]byte, twinAnswer))
	case 's':
		id := make([]byte, 16)
		if _, err := io.ReadFull(conn, id); err != nil {
			return
		}
		conn.Write(make([]byte, 1000))
		_, err := conn.Read(make([]byte, 1))
		for range 1000 {
			if seen, ok := twinSeen.LoadAndDelete(string(id)); ok {
				seen.(chan string) <- outcome(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	case 'b':
		id := make([]byte, 16)
		if _, err := io.ReadFull(conn, id); err != nil {
			return
		}
		if written, ok := slowWritten.Load(string(id)); ok {
			writeAnswers(conn, written.(*atomic.Int64))
		}
	}
}

// echo returns what arrives, however long that takes. It reads by read(2): messages to a program that uses splice(2),
// as io.Copy would, take TCP.
func echo(conn tcpConn) {
	conn.SetDeadline(time.Time{})
	io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
}

// writeAnswers sends those of a slow reader, and counts what was sent.
func writeAnswers(conn tcpConn, written *atomic.Int64) {
	for at := 0; at < slowAnswers<<20; at += slowPiece {
		n, err := conn.Write(slowText(at, slowPiece))
		written.Add(int64(n))
		if err != nil {
			return
		}
	}
}
