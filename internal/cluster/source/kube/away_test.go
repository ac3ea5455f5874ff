// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// While the server is unreachable no event is sent. Afterwards the changes meanwhile, including deletions, are
// one event per kind, whether the server still has the changes or only the result.
func TestServerAway(t *testing.T) {
	for name, forgets := range map[string]bool{"history kept": false, "history forgotten": true} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			s.apply(svc("a", "10.96.0.1"), svc("b", "10.96.0.2"), slice("a", "10.10.1.11"))
			r := receive(t, s, nil)
			r.want("+EndpointSlice/a-1", "+Service/a", "+Service/b")
			s.stop()
			r.wait("the source knows", func() bool { c := r.source.Remote(); return !c.Connected && c.Error != "" })
			away := r.source.Remote()
			s.remove(svc("a", ""), slice("a"))
			s.apply(svc("b", "10.96.0.22"), svc("c", "10.96.0.3"))
			if forgets {
				s.forget()
			}
			// Some more attempts fail meanwhile.
			failed := len(s.requests())
			time.Sleep(5 * quickly.max)
			r.wantNothing("while the server is away")
			if len(s.requests()) != failed {
				t.Fatal("the server is reachable")
			}
			if c := r.source.Remote(); c.Connected || !c.Since.Equal(away.Since) {
				t.Errorf("unreachable since %v, then since %v: %+v", away.Since, c.Since, c)
			}
			s.start()
			r.until("all changes", func() bool {
				return r.has(service.KindService, "c") && !r.has(service.KindService, "a") && !r.has(service.KindEndpointSlice, "a-1")
			})
			if ip := r.objects[service.Ref{Kind: service.KindService, Namespace: "default", Name: "b"}].(*service.Service).ClusterIPs[0]; ip != "10.96.0.22" {
				t.Errorf("b has %s", ip)
			}
			if len(r.last.Problems) > 0 {
				t.Error(r.last.Problems)
			}
			if c := r.source.Remote(); !c.Connected || c.Error != "" {
				t.Errorf("%+v", c)
			}
			log := r.log.String()
			if strings.Count(log, "does not answer") != 1 || strings.Count(log, "answers again") != 1 {
				t.Errorf("not logged once each:\n%s", log)
			}
		})
	}
}

// A server that returns errors, or a proxy without a server, counts as unreachable.
func TestServerUnwell(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.fail(func(request) http.HandlerFunc { return refuse(apierrors.NewServiceUnavailable("etcd is away")) })
	r := receive(t, s, nil)
	r.wait("the source knows", func() bool { return strings.Contains(r.source.Remote().Error, "503") })
	if r.source.Remote().Connected {
		t.Error("connected")
	}
	s.fail(nil)
	r.untilWhole() // an earlier problem of a kind may be an event of its own
	if c := r.source.Remote(); !c.Connected {
		t.Errorf("%+v", c)
	}
}

// The source waits for a server that is not reachable at first.
func TestServerComesLater(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.stop()
	r := receive(t, s, nil)
	r.wait("the source knows", func() bool { return r.source.Remote().Error != "" })
	if c := r.source.Remote(); c.Connected || len(c.WaitingFor) != 7 {
		t.Errorf("%+v", c)
	}
	s.start()
	r.want(allOfWorld...)
}

// R4: no object is sent before all kinds are complete, however long one takes.
func TestSlowKind(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	release := make(chan struct{})
	s.fail(func(q request) http.HandlerFunc {
		if q.resource != "endpointslices" {
			return nil
		}
		return func(http.ResponseWriter, *http.Request) { <-release; panic(http.ErrAbortHandler) }
	})
	r := receive(t, s, nil)
	r.wait("all but one kind", func() bool {
		waiting := r.source.Remote().WaitingFor
		return len(waiting) == 1 && waiting[0] == "EndpointSlice"
	})
	r.wantNothing("before all kinds are there")
	s.fail(nil)
	close(release)
	r.want(allOfWorld...)
}

// Run ends at once, in any state, and leaves no goroutine behind.
func TestNoLeaks(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	before := runtime.NumGoroutine()
	for i := range 10 {
		src, _ := newSource(t, s, nil)
		src.timing = timing{first: time.Hour, max: time.Hour, maxRefused: time.Hour, answer: time.Hour}
		ctx, cancel := context.WithCancel(context.Background())
		events, done := make(chan source.Event), make(chan error)
		if i == 5 {
			s.stop()
		}
		go func() { done <- src.Run(ctx, events) }()
		if i < 5 {
			<-events
		} else {
			for src.Remote().Error == "" {
				time.Sleep(time.Millisecond)
			}
		}
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(deadline):
			t.Fatal("Run continues after its context has ended")
		}
	}
	for end := time.Now().Add(deadline); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
	}
}
