// SPDX-License-Identifier: Apache-2.0

// Package kube is the source that follows the Kubernetes API server.
//
// Each of seven kinds is listed and watched by a reflector of client-go, with
// selectors, so that the server sends what counts and no more (kinds.go). An
// object is converted where it arrives and the rest of it dropped (arrive.go);
// what is kept is shared with the receiver (state.go). While the server is away
// the last state stays in force (link.go), and what it holds afterwards is
// compared with it.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"beeline.io/beeline/internal/source"
)

// Options say which server to follow, and for which node.
type Options struct {
	// Kubeconfig is a file; empty for the service account of the pod that the
	// program runs in.
	Kubeconfig string
	// Version goes into the user agent.
	Version string
	// NodeName selects the Pods: those of this node only.
	NodeName string
	// ServiceProxyName admits Services of that name beside those without (R1).
	ServiceProxyName string
	// Dial makes the connections; nil for the usual way.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Source is an API server.
type Source struct {
	server string
	log    *slog.Logger
	kinds  []kind
	client map[schema.GroupVersion]rest.Interface
	timing timing
	link   *link
	state  *state
}

var (
	_ source.Source = (*Source)(nil)
	_ source.Remote = (*Source)(nil)
)

// timing says how patient the source is.
type timing struct {
	// first is the wait before a second attempt, twice as long the next time, up
	// to most, or to mostRefused where the server answers and refuses. All are
	// lengthened by up to a half, so that nodes do not come at once.
	first, most, mostRefused time.Duration
	// answer is how long a list may take, or the beginning of a watch.
	answer time.Duration
	// starting is how long "forbidden" means nothing: an API server that starts
	// says so until it has read its roles.
	starting time.Duration
}

var defaultTiming = timing{
	first: 500 * time.Millisecond, most: 10 * time.Second, mostRefused: 2 * time.Minute,
	answer: time.Minute, starting: 3 * time.Second,
}

// New returns a source. Nothing is asked of the server yet; the error is about
// the configuration.
func New(o Options) (*Source, error) {
	config, err := restConfig(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	s := &Source{server: config.Host, log: o.Log, timing: defaultTiming, link: newLink(o.Log)}
	if u, err := url.Parse(config.Host); err == nil {
		s.server = u.Redacted()
	}
	config.UserAgent = "beeline/" + o.Version
	config.Wrap(s.link.observe)
	if config.Dial = o.Dial; config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	s.kinds = kindsFor(o.NodeName, o.ServiceProxyName)
	if s.client, err = clients(config, s.kinds); err != nil {
		return nil, fmt.Errorf("the API server %s: %w", s.server, err)
	}
	s.state = newState(s.kinds)
	return s, nil
}

// Server is the URL of the API server.
func (s *Source) Server() string { return s.server }

// Remote says how the connection to the server is.
func (s *Source) Remote() source.Connection {
	c := s.link.connection()
	c.LastHeard, c.WaitingFor = s.state.progress()
	return c
}

// Run sends all objects once each kind is complete, and then their changes as
// they come: what happens while the receiver is busy is one event. Before that it
// sends events with Problems only. It is called once.
func (s *Source) Run(ctx context.Context, events chan<- source.Event) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range s.kinds {
		f := s.follower(&s.kinds[i])
		group.Go(func() { f.run(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.state.news:
		}
		ev, ok := s.state.next()
		if !ok {
			continue
		}
		select {
		case events <- ev:
		case <-ctx.Done():
			return nil
		}
	}
}
