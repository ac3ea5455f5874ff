// SPDX-License-Identifier: Apache-2.0

// Package httpserve serves HTTP at addresses of the node, for probes and for monitoring.
package httpserve

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// retryInterval is the time between attempts to listen. An address may be in use by a program that ends soon,
// such as an earlier agent or kube-proxy.
const retryInterval = 2 * time.Second

// Limits of a request and its response. A profile takes 30 seconds by default.
const (
	headerTimeout = 5 * time.Second
	writeTimeout  = 2 * time.Minute
	idleTimeout   = 2 * time.Minute
	maxHeader     = 1 << 16 // bytes
)

// A Server serves one handler at one address.
type Server struct {
	// Name says what the server is for, in logs and conditions.
	Name string
	// Network and Address are those of net.Listen; without a network "tcp", of which 0.0.0.0 includes IPv6.
	Network, Address string
	Handler          http.Handler
	Log              *slog.Logger
	// Problem is the condition that the server cannot listen.
	Problem *condition.Kind
	// Connections bounds the open connections of several servers; nil: those of this one.
	Connections *Connections
	// Quiet logs success at level debug only, for servers of which a node may have many.
	Quiet bool

	mu  sync.Mutex
	err error
}

// Err returns why the server does not listen; nil while it does, and before the first attempt.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Run serves until ctx ends. It retries while the address is not available, and returns no error: what depends
// on the server is told by Err.
func (s *Server) Run(ctx context.Context) error {
	for {
		listener, err := (&net.ListenConfig{}).Listen(ctx, cmp.Or(s.Network, "tcp"), s.Address)
		if ctx.Err() != nil {
			if err == nil {
				listener.Close()
			}
			return nil
		}
		s.note(err)
		if err == nil {
			err = s.serve(ctx, listener)
			if ctx.Err() != nil {
				return nil
			}
			s.note(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryInterval):
		}
	}
}

// note stores the result of an attempt, and logs changes.
func (s *Server) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && (s.err == nil || s.err.Error() != err.Error()):
		s.Problem.Log(s.Log, "cannot serve "+s.Name+"; retrying", "address", s.Address, "error", err)
	case err == nil:
		level := slog.LevelInfo
		if s.Quiet && s.err == nil {
			level = slog.LevelDebug
		}
		s.Log.Log(context.Background(), level, "serving "+s.Name, "address", s.Address)
	}
	s.err = err
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.Handler, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	defer server.Close()
	if err := server.Serve(cmp.Or(s.Connections, NewConnections(defaultConnections)).bound(listener)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
