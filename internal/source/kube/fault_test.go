// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

// R4: no object is sent before all kinds are there, however long one takes.
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
	select {
	case ev := <-r.events:
		t.Fatalf("an event: %+v", ev)
	default:
	}
	s.fail(nil)
	close(release)
	r.want(allOfWorld...)
}

// While the server is away nothing is sent. What changed meanwhile is one event
// per kind afterwards, deletions too, whether the server still knows the changes
// or only what is left.
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
			time.Sleep(5 * quickly.most)
			select {
			case ev := <-r.events:
				t.Fatalf("an event while the server is away: %+v", ev)
			default:
			}
			if len(s.requests()) != failed {
				t.Fatal("the server is not away")
			}
			if c := r.source.Remote(); c.Connected || !c.Since.Equal(away.Since) {
				t.Errorf("away since %v, then since %v: %+v", away.Since, c.Since, c)
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
				t.Errorf("not said once each:\n%s", log)
			}
		})
	}
}

// A server that is there and can do nothing, or a proxy in front of none, is away.
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
	r.want(allOfWorld...)
	if c := r.source.Remote(); !c.Connected {
		t.Errorf("%+v", c)
	}
}

// A server that is not there at first is waited for.
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

// Whatever goes wrong with watches, the source ends with what the server has.
func TestBrokenWatches(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	protobuf := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		w.WriteHeader(http.StatusOK)
	}
	statusEvent := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			protobuf(w)
			a := &answer{apiServer: &apiServer{t: t}, w: w, r: r, kind: kindOf(r.URL.Path)}
			a.choose()
			a.send(watch.Error, new(err.Status()))
		}
	}
	for name, fault := range map[string]http.HandlerFunc{
		"ends at once":          func(w http.ResponseWriter, _ *http.Request) { protobuf(w) },
		"no answer":             abort,
		"garbage":               func(w http.ResponseWriter, _ *http.Request) { protobuf(w); fmt.Fprint(w, "\x00\x00\x00\x05garbage") },
		"garbage as the status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299) },
		"another type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>")
		},
		"cut in the middle": func(w http.ResponseWriter, _ *http.Request) {
			protobuf(w)
			fmt.Fprint(w, "\x00\x00\xff\xffk8s\x00")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"another kind": func(w http.ResponseWriter, r *http.Request) {
			protobuf(w)
			a := &answer{apiServer: &apiServer{t: t}, w: w, r: r, kind: kindOf("/api/v1/pods")}
			a.choose()
			a.send(watch.Added, pod("p", "node-a"))
		},
		"410 Gone":                  refuse(apierrors.NewResourceExpired("too old")),
		"410 Gone as an event":      statusEvent(apierrors.NewResourceExpired("too old")),
		"429 Too Many Requests":     refuse(apierrors.NewTooManyRequestsError("busy")),
		"500 Internal Server Error": refuse(apierrors.NewInternalError(errors.New("etcd is unwell"))),
		"500 as an event":           statusEvent(apierrors.NewInternalError(errors.New("etcd is unwell"))),
		"503 Service Unavailable":   refuse(apierrors.NewServiceUnavailable("not ready")),
		"504 too large a version":   refuse(apierrors.NewTimeoutError("Too large resource version", 1)),
		"a proxy that knows no API": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway", http.StatusBadGateway)
		},
		"403 only for watches":        refuse(apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))),
		"403 as an event for watches": statusEvent(apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			s.apply(svc("a", "10.96.0.1"), svc("b", "10.96.0.2"))
			r := receive(t, s, nil)
			r.want("+Service/a", "+Service/b")
			var failed atomic.Int32
			s.fail(func(q request) http.HandlerFunc {
				if q.resource != "services" || !q.watch {
					return nil
				}
				failed.Add(1)
				return fault
			})
			s.stop() // for the present watches
			s.start()
			r.wait("some watches failed", func() bool { return failed.Load() >= 3 })
			s.remove(svc("a", ""))
			s.apply(svc("c", "10.96.0.3"))
			s.fail(nil)
			r.until("the changes", func() bool { return r.has(service.KindService, "c") && !r.has(service.KindService, "a") })
			s.apply(svc("d", "10.96.0.4"))
			r.until("a later change, and no problem", func() bool { return r.has(service.KindService, "d") && len(r.last.Problems) == 0 })
		})
	}
}

// A watch that does not begin is given up.
func TestSilentWatch(t *testing.T) {
	s := startServer(t)
	s.apply(svc("a", "10.96.0.1"))
	var asked atomic.Int32
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	s.fail(func(q request) http.HandlerFunc {
		if q.resource != "services" || asked.Add(1) > 1 {
			return nil
		}
		return func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}
	})
	src, _ := newSource(t, s, nil)
	src.timing.answer = 100 * time.Millisecond
	events := make(chan source.Event)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go src.Run(ctx, events)
	select {
	case ev := <-events:
		if len(ev.Changes) != 1 || !ev.Synced {
			t.Errorf("%+v", ev)
		}
	case <-time.After(deadline):
		t.Fatal("nothing arrives")
	}
}

// Without what is required the source says which permission is missing, and
// begins when it is given.
func TestForbidden(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.fail(func(q request) http.HandlerFunc {
		if q.resource != "endpointslices" {
			return nil
		}
		return refuse(apierrors.NewForbidden(schema.GroupResource{Group: "discovery.k8s.io", Resource: q.resource}, "", errors.New("User \"u\" cannot list")))
	})
	r := receive(t, s, nil)
	r.problem("EndpointSlice: ", "forbidden", "grant the verbs list and watch on endpointslices.discovery.k8s.io")
	if r.last.Synced || r.last.Problems.Errors() != 1 {
		t.Fatalf("synced %v, problems %v", r.last.Synced, r.last.Problems)
	}
	s.fail(nil)
	r.until("synced", func() bool { return r.last.Synced })
	if len(r.objects) != len(allOfWorld) || len(r.last.Problems) > 0 {
		t.Errorf("%d objects, problems %v", len(r.objects), r.last.Problems)
	}
}

// What the rest works without is warned of once, and taken when it is there.
func TestOptionalKinds(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.fail(func(q request) http.HandlerFunc {
		switch q.resource {
		case "servicecidrs":
			return http.NotFound // as the server answers for a version that it does not have
		case "namespaces", "runtimeclasses":
			return refuse(apierrors.NewForbidden(schema.GroupResource{Resource: q.resource}, "", errors.New("no")))
		}
		return nil
	})
	r := receive(t, s, nil)
	r.until("synced", func() bool { return r.last.Synced })
	if len(r.objects) != 4 || r.last.Problems.Errors() > 0 {
		t.Fatalf("%d objects, problems %v", len(r.objects), r.last.Problems)
	}
	r.problem("warning: ServiceCIDR: ", "does not have servicecidrs.networking.k8s.io", "not refused")
	r.problem("warning: Namespace: ", "grant the verbs list and watch on namespaces", service.AnnotationSocketShortcut)
	r.problem("warning: RuntimeClass: ")
	s.fail(nil)
	r.until("all of it", func() bool { return len(r.objects) == len(allOfWorld) && len(r.last.Problems) == 0 })
}

// A server that starts forbids everything until it has read its roles. That is
// no reason to go on without anything.
func TestStartingServer(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	forbid := func(q request) http.HandlerFunc {
		return refuse(apierrors.NewForbidden(schema.GroupResource{Resource: q.resource}, "", errors.New("no")))
	}
	s.fail(forbid)
	r := receiveWith(t, s, func(s *Source) { s.timing.starting = time.Hour })
	r.wait("several attempts", func() bool { return len(s.requests()) > 50 })
	s.fail(nil)
	r.want(allOfWorld...)
	if len(r.last.Problems) > 0 {
		t.Error(r.last.Problems)
	}
}

// Credentials that are not accepted are one problem, not seven.
func TestUnauthorized(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.fail(func(request) http.HandlerFunc { return refuse(apierrors.NewUnauthorized("no")) })
	r := receive(t, s, nil)
	r.problem("does not accept the credentials")
	r.wait("all kinds are refused", func() bool { return len(s.requests()) > 60 })
	if len(r.last.Problems) != 1 || r.last.Synced {
		t.Errorf("synced %v: %v", r.last.Synced, r.last.Problems)
	}
	s.fail(nil)
	r.until("synced", func() bool { return r.last.Synced && len(r.last.Problems) == 0 })
}

// A list that cannot be understood is a problem, and is tried again.
func TestGarbageList(t *testing.T) {
	s := startServer(t)
	s.noWatchList = true
	s.apply(world()...)
	s.fail(func(q request) http.HandlerFunc {
		if q.resource != "nodes" || q.watch {
			return nil
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			io.WriteString(w, "k8s\x00garbage")
		}
	})
	r := receive(t, s, nil)
	r.problem("Node: cannot be read")
	s.fail(nil)
	r.until("all of it", func() bool { return len(r.objects) == len(allOfWorld) && len(r.last.Problems) == 0 })
}

// A server that refuses is asked ever more seldom.
func TestBackoff(t *testing.T) {
	s := startServer(t)
	s.fail(func(request) http.HandlerFunc {
		return refuse(apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no")))
	})
	src, _ := newSource(t, s, nil)
	src.timing.first, src.timing.mostRefused = 50*time.Millisecond, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan source.Event)
	go src.Run(ctx, events)
	end := time.After(3 * time.Second)
	for done := false; !done; {
		select {
		case <-events:
		case <-end:
			done = true
		}
	}
	// After 50, 100, ... ms: seven attempts at most, of two requests each.
	if n := len(s.requests()); n < 7*2 || n > 7*2*7 {
		t.Errorf("%d requests", n)
	}
}

// Run ends at once, in whatever state, and leaves nothing behind.
func TestNoLeaks(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	before := runtime.NumGoroutine()
	for i := range 10 {
		src, _ := newSource(t, s, nil)
		src.timing = timing{first: time.Hour, most: time.Hour, mostRefused: time.Hour, answer: time.Hour}
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
			t.Fatal("Run goes on after its context has ended")
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
