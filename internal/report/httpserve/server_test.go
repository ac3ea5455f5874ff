// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// An address that is in use is served as soon as it is free, and Err says why it is not served until then.
func TestTakenAddress(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	server := &Server{Name: "test", Address: address, Log: slog.New(slog.DiscardHandler), Problem: condition.ListenFailed, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "served")
	})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	await(t, "the error of the taken address", func() bool { return server.Err() != nil })
	other.Close()
	await(t, "the free address", func() bool { return server.Err() == nil })
	response, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if string(text) != "served" {
		t.Errorf("the server answered %q", text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("the server accepts connections after its end")
	}
}

// A client that keeps connections open, with and without a request, closes its own and no other's: each takes a file
// descriptor of the agent.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 20
	server := &Server{Name: "test", Connections: NewConnections(most), Log: slog.New(slog.DiscardHandler), Problem: condition.ListenFailed, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "served")
	})}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.serve(ctx, listener) }()
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp4", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ask := func(c net.Conn) error {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err := c.Read(make([]byte, 4096))
		return err
	}
	probers := []net.Conn{dial("127.0.0.2"), dial("127.0.0.3")}
	for _, p := range probers {
		if err := ask(p); err != nil {
			t.Fatal(err)
		}
	}
	first := dial("127.0.0.4")
	for i := range 3 * most {
		if c := dial("127.0.0.4"); i%2 == 0 {
			ask(c)
		}
	}
	for _, p := range append(probers, dial("127.0.0.2")) {
		if err := ask(p); err != nil {
			t.Errorf("the connection of another client, %s, is closed: %v", p.LocalAddr(), err)
		}
	}
	if err := ask(first); err == nil {
		t.Error("the first connection of the client with most connections is open")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := server.Connections.open.Len() + len(server.Connections.of); n != 0 {
		t.Errorf("%d connections count after their end", n)
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("waited 30 s in vain for this: %s", what)
}
