// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// ask probes a server that accepts one connection.
func ask(t *testing.T, p service.Probe, serve func(net.Conn)) (why string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, netip.AddrPort) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				serve(there)
				there.Close()
			}()
			return here, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), p.Timeout)
		defer cancel()
		why = Probe(ctx, dial, service.Target{Addr: netip.MustParseAddrPort("192.0.2.1:8080"), Probe: p})
	})
	return why
}

func httpProbe(change ...func(*service.Probe)) service.Probe {
	p := service.DefaultProbe
	p.Kind, p.Path = service.CheckHTTP, "/healthz?full=1"
	for _, c := range change {
		c(&p)
	}
	return p
}

// answer reads a request and writes the server's response.
func answer(t *testing.T, says string, check func(*http.Request)) func(net.Conn) {
	return func(conn net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			t.Error(err)
			return
		}
		if check != nil {
			check(r)
		}
		io.WriteString(conn, says)
	}
}

func TestHTTP(t *testing.T) {
	for _, test := range []struct {
		says, why string
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ""},
		{"HTTP/1.0 204 No Content\r\n\r\n", ""},
		{"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.9/\r\nContent-Length: 0\r\n\r\n", ""},
		{"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "status 500, wanted 200-399"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + strings.Repeat("x", 1<<20), ""},
		{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "no answer: "},
		{"SSH-2.0-OpenSSH\r\n", "no answer: "},
		{"", "no answer: the connection was closed"},
	} {
		got := ask(t, httpProbe(), answer(t, test.says, func(r *http.Request) {
			if r.Method != "GET" || r.RequestURI != "/healthz?full=1" || r.Host != "192.0.2.1:8080" || r.UserAgent() != "beeline-health-check" || !r.Close {
				t.Errorf("asked %s %s of %s, %v", r.Method, r.RequestURI, r.Host, r.Header)
			}
		}))
		if test.why == "" && got != "" || !strings.HasPrefix(got, test.why) {
			t.Errorf("%.40q: %q, want %q", test.says, got, test.why)
		}
	}
	named := func(p *service.Probe) {
		p.Host, p.Status = "shop.example", service.StatusRanges{{First: 404, Last: 404}}
	}
	if why := ask(t, httpProbe(named), answer(t, "HTTP/1.1 404 No\r\n\r\n", func(r *http.Request) {
		if r.Host != "shop.example" {
			t.Errorf("asked of %s", r.Host)
		}
	})); why != "" {
		t.Errorf("404 is an expected status: %s", why)
	}
}

// A server that sends nothing, or stops after a part, causes a timeout.
func TestSlow(t *testing.T) {
	hang := func(says string) func(net.Conn) {
		return func(conn net.Conn) {
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, says)
			io.Copy(io.Discard, conn) // until the probe gives up
		}
	}
	for _, says := range []string{"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nX: "} {
		if why := ask(t, httpProbe(), hang(says)); why != "timeout: no answer within 2s" {
			t.Errorf("%q: %q", says, why)
		}
	}
	if why := ask(t, httpProbe(), hang("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfive.")); why != "" {
		t.Errorf("the status is good, and the body has only until the timeout: %q", why)
	}
	secure := func(p *service.Probe) { p.Kind = service.CheckHTTPS }
	if why := ask(t, httpProbe(secure), hang("")); why != "timeout: no TLS handshake within 2s" {
		t.Errorf("%q", why)
	}
}

// certificate returns a self-signed certificate for a name.
func certificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestHTTPS(t *testing.T) {
	var name string
	serve := func(conn net.Conn) {
		c := certificate(t, "shop.example")
		secure := tls.Server(conn, &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			name = hello.ServerName
			return &c, nil
		}})
		if secure.Handshake() == nil {
			answer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", nil)(secure)
		}
	}
	probe := func(insecure bool) service.Probe {
		return httpProbe(func(p *service.Probe) {
			p.Kind, p.ServerName, p.Insecure = service.CheckHTTPS, "shop.example", insecure
		})
	}
	if why := ask(t, probe(true), serve); why != "" || name != "shop.example" {
		t.Errorf("any certificate is accepted: %q; asked for %q", why, name)
	}
	if why := ask(t, probe(false), serve); !strings.HasPrefix(why, "certificate: ") || strings.Contains(why, "x509") {
		t.Errorf("an untrusted certificate: %q", why)
	}
	if why := ask(t, probe(true), func(conn net.Conn) {
		conn.Read(make([]byte, 1<<16))
		io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
	}); !strings.HasPrefix(why, "no TLS handshake: ") {
		t.Errorf("a server without TLS: %q", why)
	}
}
