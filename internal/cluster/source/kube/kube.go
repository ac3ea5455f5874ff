// SPDX-License-Identifier: Apache-2.0

// Package kube is the source that follows the Kubernetes API server.
//
// A client-go reflector lists and watches each of seven kinds, with selectors, so that the server sends only
// what is needed (kinds.go). Objects are converted on arrival, and the rest of them is discarded (listwatch.go);
// the receiver shares the converted part (state.go). While the server is unreachable, the last state stays in
// use (link.go); afterwards the new state is compared with it.
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

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// Options select the server and the node.
type Options struct {
	// Kubeconfig is a file; empty for the service account of the process's pod.
	Kubeconfig string
	// Version is part of the user agent.
	Version string
	// NodeName selects Pods: only those of this node are read.
	NodeName string
	// ServiceProxyName also admits Services with this proxy name (R1).
	ServiceProxyName string
	// Dial makes the connections; nil for the default.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Source is an API server.
type Source struct {
	server string
	log    *slog.Logger
	kinds  []kind
	client map[schema.GroupVersion]rest.Interface
	events *Events
	timing timing
	link   *link
	state  *state

	credentials credentials
}

var (
	_ source.Source  = (*Source)(nil)
	_ source.Remote  = (*Source)(nil)
	_ source.Counted = (*Source)(nil)
)

// timing holds delays and timeouts.
type timing struct {
	// first is the delay before the first retry. It doubles with each further retry, up to max, or to
	// maxRefused if the server refuses the request. A random increase of up to a half keeps nodes from
	// retrying at the same time.
	first, max, maxRefused time.Duration
	// answer is the timeout of a list, and of the start of a watch.
	answer time.Duration
	// starting is how long "forbidden" is ignored: a starting API server returns it until it has loaded its
	// roles.
	starting time.Duration
}

var defaultTiming = timing{
	first: 500 * time.Millisecond, max: 10 * time.Second, maxRefused: 2 * time.Minute,
	answer: time.Minute, starting: 3 * time.Second,
}

// New returns a source. It sends no requests; its errors are about the configuration.
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
	if config.Dial = o.Dial; config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	events, err := jsonClient(config) // with connections of its own, whose requests are not observed
	if err != nil {
		return nil, fmt.Errorf("the API server %s: %w", s.server, err)
	}
	s.events = &Events{events}
	config.Wrap(s.link.observe)
	s.kinds = kindsFor(o.NodeName, o.ServiceProxyName)
	if s.client, err = clients(config, s.kinds); err != nil {
		return nil, fmt.Errorf("the API server %s: %w", s.server, err)
	}
	s.state = newState(s.kinds)
	s.credentials = credentialsOf(config, o.Kubeconfig)
	return s, nil
}

// Server returns the URL of the API server.
func (s *Source) Server() string { return s.server }

// Remote returns the state of the connection to the server.
func (s *Source) Remote() source.Connection {
	c := s.link.connection()
	c.LastSeen, c.WaitingFor = s.state.progress()
	return c
}

// Counts returns the counts of each kind.
func (s *Source) Counts() map[service.Kind]source.Counts { return s.state.counts() }

// Run sends all objects once every kind is complete, and then their changes as they arrive. Until then it sends
// events with Problems only. Changes that arrive while the receiver is busy become one event. Call it once.
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
		case <-s.state.dirty:
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
