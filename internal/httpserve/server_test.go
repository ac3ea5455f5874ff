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

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("%s: not within 30 seconds", what)
}
