// SPDX-License-Identifier: Apache-2.0

package healthcheck

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

	"beeline.io/beeline/internal/cluster/service"
)

// Maximum number of bytes read from a response, whose status is all that a probe needs.
const (
	maxHeader = 64 << 10
	maxBody   = 64 << 10
)

// A Dialer connects to an address.
type Dialer func(context.Context, netip.AddrPort) (net.Conn, error)

// Direct returns a Dialer that connects to the address itself, even if it belongs to a Service: the datapath
// passes sockets with this mark (SO_MARK). The route selects the source address.
func Direct(mark uint32) Dialer {
	d := Marked(net.Dialer{KeepAlive: -1}, mark)
	return func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", addr.String())
	}
}

// Marked returns a dialer that sets SO_MARK before connect(). It disables MPTCP, because with MPTCP the kernel
// connects another socket, without the mark.
func Marked(d net.Dialer, mark uint32) *net.Dialer {
	d.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt SO_MARK", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)))
		})
		return cmp.Or(failed, err)
	}
	d.SetMultipathTCP(false)
	return &d
}

// Reach returns why the serving endpoint does not answer; "" if it accepts or refuses the connection.
func Reach(ctx context.Context, dial Dialer, t service.Target) (why string) {
	conn, err := dial(ctx, t.Via.Backend)
	switch {
	case err == nil:
		reset(conn)
		return ""
	case errors.Is(err, unix.ECONNREFUSED):
		return ""
	}
	return reasonOf(err, "no answer", t.Probe.Timeout)
}

// reset closes a connection with a RST, so that thousands of probes leave no sockets in TIME_WAIT.
func reset(conn net.Conn) {
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// Probe probes a target once, until ctx ends. It returns why the probe failed; "" if it did not.
func Probe(ctx context.Context, dial Dialer, t service.Target) (why string) {
	conn, err := dial(ctx, t.Addr)
	if err != nil {
		return reasonOf(err, "no connection", t.Probe.Timeout)
	}
	defer conn.Close()
	if t.Probe.Kind == service.CheckTCP {
		reset(conn)
		return ""
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if t.Probe.Kind == service.CheckHTTPS {
		secure := tls.Client(conn, tlsConfig(t))
		if err := secure.HandshakeContext(ctx); err != nil {
			return reasonOf(err, "no TLS handshake", t.Probe.Timeout)
		}
		conn = secure
	}
	status, err := get(ctx, conn, t)
	if err != nil {
		return reasonOf(err, "no answer", t.Probe.Timeout)
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

// get sends a GET request over an existing connection and returns the status code.
func get(ctx context.Context, conn net.Conn, t service.Target) (status int, err error) {
	given := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	transport := &http.Transport{
		DialContext: given, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
	defer transport.CloseIdleConnections()
	// If the check uses TLS, conn already does.
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.Addr.String()+t.Probe.Path, nil)
	if err != nil {
		return 0, err
	}
	request.Host = t.Probe.Host // empty: the URL's host
	request.Header.Set("User-Agent", "beeline-health-check")
	response, err := transport.RoundTrip(request) // does not follow redirects
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	// A server whose short response is cut off may log an error.
	io.CopyN(io.Discard, response.Body, maxBody)
	return response.StatusCode, nil
}

// reasonOf returns a short reason, the same text for the same failure.
func reasonOf(err error, missing string, within time.Duration) string {
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
