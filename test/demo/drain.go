// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
)

const (
	// leaver is the pod that is removed.
	leaver = "b1"
	// drainTime is how long a stopping server serves open connections.
	drainTime = 30 * time.Second
	// phaseConnections is the least number of connections that each client makes in a phase.
	phaseConnections = 150
)

func showDrain(ctx context.Context, d *demo) error {
	web, err := d.view(webService)
	if err != nil {
		return err
	}
	if !slices.Contains(web.pods, leaver) {
		return fmt.Errorf("the demo needs pod %s behind Service %s, which has %v", leaver, webService, web.pods)
	}
	l := d.startLoad(ctx, leaver+" serves", web.addresses)
	defer l.stop()
	if err := l.await(ctx, phaseConnections); err != nil {
		return err
	}
	removed, err := d.takeAway(ctx, l, web.addresses[0])
	if err != nil {
		return err
	}
	if err := l.await(ctx, phaseConnections); err != nil {
		return err
	}
	if err := d.putBack(ctx, l, removed, web.pods); err != nil {
		return err
	}
	if err := l.await(ctx, phaseConnections); err != nil {
		return err
	}
	l.stop()
	if err := d.count(web.pods, l.phases...); err != nil {
		return err
	}
	before, without, after := l.phases[0].byPod[leaver], l.phases[1].byPod[leaver], l.phases[2].byPod[leaver]
	err = d.claim(before > 0 && without == 0 && after > 0,
		"%s got %d new connections, then none, then %d again; no connection failed", leaver, before, after)
	if err != nil {
		return err
	}
	return d.claim(true, "an open connection to %s was answered after its removal", leaver)
}

// takeAway removes the pod's endpoint from the manifests, and stops its server once no connection is on its way
// to it: the order in which Kubernetes ends a pod.
func (d *demo) takeAway(ctx context.Context, l *load, address netip.AddrPort) (*change, error) {
	open, err := d.connectTo(ctx, leaver, address)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	removed, err := removeEndpoints(d.folder, webService, d.lab.Host(leaver))
	if err != nil {
		return nil, err
	}
	if err := d.awaitPods(webService, func(pods []string) bool { return !slices.Contains(pods, leaver) }); err != nil {
		return nil, err
	}
	l.next(leaver + " has left")
	if err := l.await(ctx, 1); err != nil {
		return nil, err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- d.lab.Host(leaver).StopServer() }()
	for range 2 {
		ctx, cancel := context.WithTimeout(ctx, patience)
		answer, err := lab.Ask(ctx, open, "are you still there")
		cancel()
		if err != nil || answer.Pod != leaver {
			return nil, fmt.Errorf("the open connection to %s: answer from %q: %w", leaver, answer.Pod, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	open.Close()
	return removed, <-stopped
}

// putBack undoes takeAway.
func (d *demo) putBack(ctx context.Context, l *load, removed *change, pods []string) error {
	if err := d.lab.Host(leaver).StartServer(lab.ServerOptions{Drain: drainTime}); err != nil {
		return err
	}
	l.next(leaver + " is back")
	if err := l.await(ctx, 1); err != nil { // earlier connections have ended
		return err
	}
	if err := removed.undo(); err != nil {
		return err
	}
	return d.awaitPods(webService, func(now []string) bool { return slices.Equal(now, pods) })
}

// connectTo opens a connection that a certain pod answers.
func (d *demo) connectTo(ctx context.Context, pod string, address netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for ctx.Err() == nil {
		d.attempts++
		conn, err := d.lab.Host("a1").Dial(ctx, "tcp", address.String())
		if err != nil {
			return nil, err
		}
		answer, err := lab.Ask(ctx, conn, "who are you")
		if err == nil && answer.Pod == pod {
			return conn, nil
		}
		conn.Close()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no connection to %s reached %s in %s", address, pod, patience)
}

// awaitPods waits until the tables of both nodes have the wanted pods behind all addresses of a Service.
func (d *demo) awaitPods(name string, wanted func([]string) bool) error {
	for _, a := range d.agents {
		err := a.WaitForTables("following the manifests", func(t *api.Tables) bool {
			s, err := t.Find(name)
			if err != nil {
				return false
			}
			return !slices.ContainsFunc(s.Frontends, func(f api.Frontend) bool {
				return len(f.FromPods.Backends) > 0 && !wanted(d.podsOf(f.FromPods.Backends))
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
