// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"beeline.io/beeline/test/lab"
)

type dialer func() (tcpConn, error)

func (w *world) dialer(from *lab.Host, to netip.AddrPort) dialer {
	return func() (tcpConn, error) { return w.applicationsOf(from).connect(to) }
}

// applicationsOf are another program's where one was started, and else this one's.
func (w *world) applicationsOf(host *lab.Host) applications {
	if a := w.applications[host.Name]; a != nil {
		return a
	}
	return ownSockets{w, host}
}

// outcome names an error as programs see it.
func outcome(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{{nil, "ok"}, {io.EOF, "EOF"}, {io.ErrUnexpectedEOF, "EOF"}, {syscall.ECONNRESET, "ECONNRESET"}, {syscall.ECONNREFUSED, "ECONNREFUSED"}, {syscall.EPIPE, "EPIPE"}} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return err.Error()
}

// echoed sends octets to the server, which sends them back.
func echoed(dial dialer, size int) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(append([]byte("e"), sent...))
		written <- err
	}()
	received := make([]byte, size)
	if _, err = io.ReadFull(conn, received); err == nil {
		err = <-written
	}
	if err == nil && !bytes.Equal(sent, received) {
		return "other octets come back"
	}
	return outcome(err)
}

// endedBy asks the server to end the connection in some way, with 1,000 octets under way to it.
func endedBy(dial dialer, how byte) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	if _, err := conn.Write(append([]byte{how}, make([]byte, 1000)...)); err != nil {
		return "write: " + outcome(err)
	}
	_, err = conn.Read(make([]byte, 1))
	return outcome(err)
}

// halfClosed closes its side; the server answers after that.
func halfClosed(dial dialer) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	if _, err = conn.Write(append([]byte("h"), make([]byte, 5000)...)); err == nil {
		err = conn.CloseWrite()
	}
	if err != nil {
		return outcome(err)
	}
	all, err := io.ReadAll(conn)
	if err == nil && len(all) != twinAnswer {
		return fmt.Sprintf("%d octets of %d come back", len(all), twinAnswer)
	}
	return outcome(err)
}

// greeted reads what the server sends first.
func greeted(dial dialer) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, len(twinGreeting)))
	return outcome(err)
}

// leftUnread closes a connection with data unread, and returns what the server sees.
func leftUnread(dial dialer) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	id := fmt.Sprintf("%016x", rand.Uint64())
	_, err = conn.Write([]byte("s" + id))
	time.Sleep(100 * time.Millisecond) // what the server sends has come
	conn.Close()
	if err != nil {
		return outcome(err)
	}
	seen := make(chan string, 1)
	twinSeen.Store(id, seen)
	select {
	case s := <-seen:
		return "the server sees " + s
	case <-time.After(patience / 4):
		return "the server sees nothing"
	}
}

// How slowly a reader reads: nothing for the first time, then pieces with a pause after each.
const (
	slowStart, slowPause = 2 * time.Second, 5 * time.Millisecond
	slowAnswers          = 64 // of 1 MiB: more than all buffers on the way take
	slowPiece            = 256 << 10
)

// readSlowly: all of what the server sends arrives, and the server waits until it is read.
func readSlowly(dial dialer) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	id := fmt.Sprintf("%016x", rand.Uint64())
	written := new(atomic.Int64)
	slowWritten.Store(id, written)
	defer slowWritten.Delete(id)
	if _, err := conn.Write([]byte("b" + id)); err != nil {
		return "write: " + outcome(err)
	}
	time.Sleep(slowStart)
	if n := written.Load(); n == 0 || n == slowAnswers<<20 {
		return fmt.Sprintf("the server has written %d octets before anything is read", n)
	}
	piece := make([]byte, slowPiece)
	for at := 0; at < slowAnswers<<20; at += len(piece) {
		if _, err := io.ReadFull(conn, piece); err != nil {
			return fmt.Sprintf("after %d octets: %s", at, outcome(err))
		}
		if !bytes.Equal(piece, slowText(at, len(piece))) {
			return fmt.Sprintf("other octets arrive after %d", at)
		}
		time.Sleep(slowPause)
	}
	n, err := conn.Read(piece)
	if n > 0 {
		return fmt.Sprintf("%d more octets arrive", n)
	}
	return outcomeOfEnd(err)
}

// slowText is what the server sends from an offset on: each eight octets are their number.
func slowText(at, size int) []byte {
	text := make([]byte, 0, size)
	for i := range size / 8 {
		text = binary.LittleEndian.AppendUint64(text, uint64(at/8+i))
	}
	return text
}

// outcomeOfEnd is "ok" if a connection has ended as it should.
func outcomeOfEnd(err error) string {
	if err == io.EOF {
		return "ok"
	}
	return "at the end: " + outcome(err)
}
