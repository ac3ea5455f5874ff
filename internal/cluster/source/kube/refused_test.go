// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"beeline.io/beeline/internal/cluster/service"
)

// Without a required kind the source names the missing permission, and starts when it is granted.
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

// An optional kind causes one warning, and is used when it becomes available.
func TestOptionalKinds(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.fail(func(q request) http.HandlerFunc {
		switch q.resource {
		case "servicecidrs":
			return http.NotFound // like a server without this version
		case "namespaces", "runtimeclasses":
			return refuse(forbidden(q.resource))
		}
		return nil
	})
	r := receive(t, s, nil)
	r.until("synced", func() bool { return r.last.Synced })
	if len(r.objects) != 4 || r.last.Problems.Errors() > 0 {
		t.Fatalf("%d objects, problems %v", len(r.objects), r.last.Problems)
	}
	r.problem("warning: ServiceCIDR: ", "does not have servicecidrs.networking.k8s.io", "not dropped")
	r.problem("warning: Namespace: ", "grant the verbs list and watch on namespaces", service.AnnotationSocketShortcut)
	r.problem("warning: RuntimeClass: ")
	s.fail(nil)
	r.untilWhole()
}

// A starting server forbids everything until it has loaded its roles. The source must not continue without the
// optional kinds then.
func TestStartingServer(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	s.fail(func(q request) http.HandlerFunc { return refuse(forbidden(q.resource)) })
	r := receiveWith(t, s, func(s *Source) { s.timing.starting = time.Hour })
	r.wait("several attempts", func() bool { return len(s.requests()) > 50 })
	s.fail(nil)
	r.want(allOfWorld...)
	if len(r.last.Problems) > 0 {
		t.Error(r.last.Problems)
	}
}

// Credentials that are not accepted any more are one problem, whichever watches and lists the server refuses.
func TestUnauthorizedLater(t *testing.T) {
	s := startServer(t)
	s.apply(world()...)
	r := receive(t, s, nil)
	r.until("synced", func() bool { return r.last.Synced })
	s.fail(func(q request) http.HandlerFunc {
		return refuse(apierrors.NewUnauthorized("no token for " + q.resource)) // the text differs by kind
	})
	s.stop() // the watches end
	s.start()
	r.problem("does not accept the credentials", "requests without credentials") // as the server has no TLS
	before := len(s.requests())
	r.wait("all kinds are refused", func() bool { return len(s.requests()) > before+60 })
	if len(r.last.Problems) != 1 || r.last.Problems.Errors() != 1 || !strings.Contains(r.last.Problems[0].Remedy, "restart the agent") {
		t.Errorf("%v", r.last.Problems)
	}
	if c := r.last.Problems[0].Condition(); c.Remedy != r.last.Problems[0].Remedy || strings.Contains(c.Message, c.Remedy) {
		t.Errorf("the condition is %+v", c)
	}
	s.fail(nil)
	r.until("well again", func() bool { return len(r.last.Problems) == 0 })
}

// Rejected credentials are one problem, not seven.
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

// A list that cannot be decoded is a problem, and is retried.
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
	r.untilWhole()
}

// Requests to a server that refuses them become less and less frequent.
func TestBackoff(t *testing.T) {
	s := startServer(t)
	s.fail(func(q request) http.HandlerFunc { return refuse(forbidden(q.resource)) })
	r := receiveWith(t, s, func(s *Source) { s.timing.first, s.timing.maxRefused = 50*time.Millisecond, time.Hour })
	end := time.After(3 * time.Second)
	for done := false; !done; {
		select {
		case <-r.events:
		case <-end:
			done = true
		}
	}
	// After 50, 100, ... ms: seven attempts at most, of two requests each.
	if n := len(s.requests()); n < 7*2 || n > 7*2*7 {
		t.Errorf("%d requests", n)
	}
}

// TestBackoffWhereSomeAnswer: requests to a server that redirects to a dead address or to itself, or that fails
// every second request, become less and less frequent, and the log has only a few messages.
func TestBackoffWhereSomeAnswer(t *testing.T) {
	var asked atomic.Int32
	for name, answer := range map[string]http.HandlerFunc{
		"redirects to a dead address": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1"+r.URL.String(), http.StatusTemporaryRedirect)
		},
		"redirects to itself": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		},
		"fails every second request": func(w http.ResponseWriter, r *http.Request) {
			refusal := apierrors.NewServiceUnavailable("no")
			if asked.Add(1)%2 == 0 {
				refusal = forbidden("this")
			}
			refuse(refusal)(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			s.fail(func(request) http.HandlerFunc { return answer })
			r := receiveWith(t, s, func(s *Source) {
				s.timing.first, s.timing.max, s.timing.maxRefused = 50*time.Millisecond, time.Hour, time.Hour
			})
			r.wait("the source knows", func() bool { return r.source.Remote().Error != "" })
			time.Sleep(3 * time.Second)
			// After 50, 100, ... ms: at most seven attempts per kind, of two requests each, each
			// ten in a redirect loop; and as many again that an answer wakes before it is known to
			// mean nothing.
			if n := len(s.requests()); n > 2*7*2*7*10 || name != "redirects to itself" && n > 2*7*2*7 {
				t.Errorf("%d requests", n)
			}
			if n := strings.Count(r.log.String(), "\n"); n == 0 || n > 2*maxFlaps+2 { // two per flap, the first failure, and the message about flapping
				t.Errorf("%d lines of log:\n%s", n, r.log.String())
			}
		})
	}
}
