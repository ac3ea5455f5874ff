// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/wakeup"
)

// A Kind is a kind of flow.
type Kind struct {
	Network     string // tcp or udp
	IPv6        bool
	Translation Translation
}

func (k Kind) String() string {
	version := 4
	if k.IPv6 {
		version = 6
	}
	return fmt.Sprintf("%s over IPv%d %s", k.Network, version, k.Translation)
}

// Kinds returns all kinds with these translations that a world has.
func (w *World) Kinds(translations ...Translation) (all []Kind) {
	for _, network := range []string{"tcp", "udp"} {
		for i := range w.families(ServerAddresses) {
			for _, t := range translations {
				all = append(all, Kind{network, i == 1, t})
			}
		}
	}
	return all
}

// to is what the client connects to.
func (k Kind) to() netip.AddrPort {
	family := 0
	if k.IPv6 {
		family = 1
	}
	if k.Translation.dnat() {
		return netip.AddrPortFrom(VIPs[family], k.Translation.servicePort())
	}
	return netip.AddrPortFrom(ServerAddresses[family].Addr(), k.Translation.servicePort())
}

// serve starts the servers, which send back what they receive.
func (w *World) serve() error {
	for _, address := range w.families(ServerAddresses) {
		for t := range Both + 1 {
			if err := w.ServeAt(netip.AddrPortFrom(address.Addr(), t.serverPort())); err != nil {
				return err
			}
		}
	}
	return nil
}

// ServeAt starts a server for TCP and UDP at a further address of the server.
func (w *World) ServeAt(address netip.AddrPort) error {
	return w.Server.Do(func() error { return w.serveAt(address.String()) })
}

func (w *World) serveAt(address string) error {
	streams, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	w.servers = append(w.servers, streams)
	datagrams, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	w.servers = append(w.servers, datagrams)
	go echoStreams(streams)
	go echoDatagrams(datagrams)
	return nil
}

func echoStreams(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close() // after the client's FIN
			_, _ = io.Copy(c, c)
		}()
	}
}

func echoDatagrams(c net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buffer[:n], from)
	}
}

// A Flow is a connection, or an exchange of datagrams, between client and server.
type Flow struct {
	Kind
	Conn  net.Conn
	round uint64
}

// grace is how long after the deadline of its context a flow ends: the context's own error says more.
const grace = 300 * time.Millisecond

// Open opens a flow. It ends shortly after ctx's deadline.
func (w *World) Open(ctx context.Context, k Kind) (f *Flow, err error) { return w.open(ctx, k, k.to()) }

// OpenTo opens a flow to an address of ServeAt.
func (w *World) OpenTo(ctx context.Context, network string, to netip.AddrPort) (*Flow, error) {
	return w.open(ctx, Kind{Network: network, IPv6: to.Addr().Is6()}, to)
}

// dialAgain is the pause before a server that has no route yet is asked again.
const dialAgain = 100 * time.Millisecond

func (w *World) open(ctx context.Context, k Kind, to netip.AddrPort) (f *Flow, err error) {
	f = &Flow{Kind: k}
	err = w.Client.Do(func() error {
		// On a busy machine the kernel takes seconds until IPv6 answers at devices that have just been set up.
		for f.Conn, err = new(net.Dialer).DialContext(ctx, k.Network, to.String()); errors.Is(err, unix.EHOSTUNREACH) && wakeup.Sleep(ctx, dialAgain); {
			f.Conn, err = new(net.Dialer).DialContext(ctx, k.Network, to.String())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = f.Conn.SetDeadline(deadline.Add(grace))
	}
	return f, nil
}

// Close closes the client's socket without waiting.
func (f *Flow) Close() { f.Conn.Close() }

// messageSize is the payload of a packet of Exchange, in octets.
const messageSize = 64

// Exchange sends messages, each after the answer to the previous one, and checks the answers.
func (f *Flow) Exchange(rounds int) error {
	answer := make([]byte, messageSize)
	for range rounds {
		f.round++
		message := bytes.Repeat(binary.BigEndian.AppendUint64(nil, f.round), messageSize/8)
		if _, err := f.Conn.Write(message); err != nil {
			return fmt.Errorf("%s: message %d: %w", f.Kind, f.round, err)
		}
		if _, err := io.ReadFull(f.Conn, answer); err != nil {
			return fmt.Errorf("%s: answer %d: %w", f.Kind, f.round, err)
		}
		if !bytes.Equal(message, answer) {
			return fmt.Errorf("%s: answer %d has another payload", f.Kind, f.round)
		}
	}
	return nil
}

// Send sends messages without waiting for answers.
func (f *Flow) Send(messages int) error {
	message := make([]byte, messageSize)
	for range messages {
		if _, err := f.Conn.Write(message); err != nil {
			return fmt.Errorf("%s: %w", f.Kind, err)
		}
	}
	return nil
}

// Stream sends octets by TCP, receives them again at the same time, and compares them.
func (f *Flow) Stream(octets int) error {
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(f.Conn, pattern(octets))
		sent <- err
	}()
	err := equal(io.LimitReader(f.Conn, int64(octets)), pattern(octets))
	if err := errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("%s: stream of %d octets: %w", f.Kind, octets, err)
	}
	return nil
}

// pattern is a stream of octets that repeats itself at no power of two, so that a lost or repeated segment is
// noticed.
func pattern(octets int) io.Reader {
	block := make([]byte, 8191)
	for i := range block {
		block[i] = byte(i*i/7 + i)
	}
	return io.LimitReader(&repeated{block: block}, int64(octets))
}

type repeated struct {
	block []byte
	at    int
}

func (r *repeated) Read(b []byte) (int, error) {
	n := copy(b, r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	return n, nil
}

// equal compares two streams.
func equal(got, want io.Reader) error {
	a, b := make([]byte, 1<<16), make([]byte, 1<<16)
	for at := 0; ; at += len(a) {
		n, err := io.ReadFull(got, a)
		m, wantErr := io.ReadFull(want, b)
		if n != m {
			return fmt.Errorf("%d octets arrived, want %d: %w", at+n, at+m, errors.Join(err, errors.New("the stream is short")))
		}
		if !bytes.Equal(a[:n], b[:m]) {
			return fmt.Errorf("octets from %d on have other values", at)
		}
		if wantErr != nil {
			return nil
		}
	}
}

// Finish ends a TCP connection from the client's side, and waits for the server's FIN.
func (f *Flow) Finish() error {
	half, ok := f.Conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := half.CloseWrite(); err != nil {
		return fmt.Errorf("%s: FIN: %w", f.Kind, err)
	}
	if n, err := half.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("%s: after FIN %d octets and %w, want the server's FIN", f.Kind, n, err)
	}
	return nil
}
