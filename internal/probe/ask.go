// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/service"
)

// How much of an answer is read: a probe looks at the status alone.
const (
	headerMost = 64 << 10
	bodyMost   = 64 << 10
)

// dialer connects to a target.
type dialer func(context.Context, netip.AddrPort) (net.Conn, error)

// Direct makes connections to the addresses themselves, also where one is a
// Service's, if the datapath leaves sockets with this mark alone (SO_MARK). The
// source address is that of the route.
func Direct(mark uint32) dialer {
	d := Marked(net.Dialer{KeepAlive: -1}, mark)
	return func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", addr.String())
	}
}

// Marked is a dialer whose sockets bear a mark before they connect. Those of MPTCP could
// not: the kernel connects others in their place.
func Marked(d net.Dialer, mark uint32) *net.Dialer {
	d.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		if err := raw.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt SO_MARK", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)))
		}); err != nil {
			return err
		}
		return err
	}
	d.SetMultipathTCP(false)
	return &d
}

// Ask asks a target once, until ctx ends, and says what is wrong with it; "" if
// nothing is.
func Ask(ctx context.Context, dial dialer, t service.Target) (why string) {
	conn, err := dial(ctx, t.Addr)
	if err != nil {
		return explain(err, "no connection", t.Probe.Timeout)
	}
	defer conn.Close()
	if t.Probe.Kind == service.CheckTCP {
		// Thousands of probes should leave nothing in TIME_WAIT.
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		return ""
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if t.Probe.Kind == service.CheckHTTPS {
		secure := tls.Client(conn, tlsConfig(t))
		if err := secure.HandshakeContext(ctx); err != nil {
			return explain(err, "no TLS handshake", t.Probe.Timeout)
		}
		conn = secure
	}
	status, err := get(ctx, conn, t)
	if err != nil {
		return explain(err, "no answer", t.Probe.Timeout)
	}
	if !t.Probe.Status.Has(status) {
		return fmt.Sprintf("status %d, wanted %s", status, t.Probe.Status)
	}
	return ""
}

func tlsConfig(t service.Target) *tls.Config {
	return &tls.Config{
		ServerName: cmp.Or(t.Probe.ServerName, t.Addr.Addr().String()), InsecureSkipVerify: t.Probe.Insecure,
		NextProtos: []string{"http/1.1"},
	}
}

// get asks over a connection that has been made.
func get(ctx context.Context, conn net.Conn, t service.Target) (status int, err error) {
	given := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	transport := &http.Transport{
		DialContext: given, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: headerMost,
	}
	defer transport.CloseIdleConnections()
	// TLS, if any, is in conn already.
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.Addr.String()+t.Probe.Path, nil)
	if err != nil {
		return 0, err
	}
	request.Host = t.Probe.Host // empty: the URL's
	request.Header.Set("User-Agent", "beeline-health-check")
	response, err := transport.RoundTrip(request) // which follows no redirects
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	// Who is cut off in the middle of a short answer may log that.
	io.CopyN(io.Discard, response.Body, bodyMost)
	return response.StatusCode, nil
}

// explain says in a few words what went wrong, the same ones each time.
func explain(err error, missing string, within time.Duration) string {
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	var errno syscall.Errno
	switch {
	case errors.As(err, &certificate):
		return "certificate: " + strings.TrimPrefix(certificate.Err.Error(), "x509: ")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("timeout: %s within %v", missing, within)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return missing + ": the connection was closed"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return fmt.Sprintf("%s: %.160s", missing, err)
}
