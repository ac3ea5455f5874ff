// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// An address that is in use is served as soon as it is free, and Err says why it is not served until then.
func TestTakenAddress(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	server := &Server{Name: "test", Address: address, Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "served")
	})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	await(t, "the error of the taken address", func() bool { return server.Err() != nil && !server.Listening() })
	other.Close()
	await(t, "the free address", func() bool { return server.Err() == nil && server.Listening() })
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

// Clients that keep connections open, with and without a request, close their own and no others: each takes a file
// descriptor of the agent.
func TestConnectionsAreBounded(t *testing.T) {
	server := &Server{Name: "test", Network: "tcp4", Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "served")
	})}
	listener, err := net.Listen("tcp4", server.Address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.serve(ctx, listener) }()
	var first net.Conn
	for i := range maxConnections + 40 {
		c, err := net.Dial("tcp4", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			first = c
		}
		if i%2 == 0 {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		}
	}
	response, err := http.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	first.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadAll(first); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the first connection is open: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("%s: not within 30 seconds", what)
}
