// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"beeline.io/beeline/internal/cluster/service"
)

// brokenWatches are faulty responses to a watch.
func brokenWatches(t *testing.T) map[string]http.HandlerFunc {
	protobuf := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		w.WriteHeader(http.StatusOK)
	}
	event := func(what watch.EventType, o runtime.Object) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			protobuf(w)
			a := &answer{apiServer: &apiServer{t: t}, w: w, r: r, kind: kindOf(r.URL.Path)}
			a.choose()
			a.send(what, o)
		}
	}
	return map[string]http.HandlerFunc{
		"ends at once":          func(w http.ResponseWriter, _ *http.Request) { protobuf(w) },
		"no answer":             func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
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
		"another kind":              event(watch.Added, pod("p", "node-a")),
		"410 Gone":                  refuse(apierrors.NewResourceExpired("too old")),
		"410 Gone as an event":      event(watch.Error, new(apierrors.NewResourceExpired("too old").Status())),
		"429 Too Many Requests":     refuse(apierrors.NewTooManyRequestsError("busy")),
		"500 Internal Server Error": refuse(apierrors.NewInternalError(errors.New("etcd is unwell"))),
		"500 as an event":           event(watch.Error, new(apierrors.NewInternalError(errors.New("etcd is unwell")).Status())),
		"503 Service Unavailable":   refuse(apierrors.NewServiceUnavailable("not ready")),
		"504 too large a version":   refuse(apierrors.NewTimeoutError("Too large resource version", 1)),
		"a proxy that knows no API": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway", http.StatusBadGateway)
		},
		"403 only for watches":        refuse(forbidden("services")),
		"403 as an event for watches": event(watch.Error, new(forbidden("services").Status())),
	}
}

// Whatever fails in watches, the source reaches the server's state.
func TestBrokenWatches(t *testing.T) {
	for name, fault := range brokenWatches(t) {
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
			s.stop() // for the current watches
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

// A watch that does not start is aborted. The others start long before, even on a busy machine.
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
	r := receiveWith(t, s, func(s *Source) { s.timing.answer = time.Second })
	r.want("+Service/a")
	if !r.last.Synced {
		t.Errorf("%+v", r.last)
	}
}
