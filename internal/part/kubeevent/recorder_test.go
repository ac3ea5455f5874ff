// SPDX-License-Identifier: Apache-2.0

package kubeevent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// server is an API server that takes Events, or refuses them with an error.
type server struct {
	events []*eventsv1.Event
	asked  int
	err    error
}

func (s *server) UID(_ context.Context, object service.Ref) (types.UID, error) {
	if object.Name == "gone" {
		return "", apierrors.NewNotFound(schema.GroupResource{}, object.Name)
	}
	return types.UID("uid-" + object.Name), nil
}

func (s *server) CreateEvent(_ context.Context, e *eventsv1.Event) error {
	s.asked++
	if s.err == nil {
		s.events = append(s.events, e)
	}
	return s.err
}

func web(name string) service.Ref {
	return service.Ref{Kind: service.KindService, Namespace: "default", Name: name}
}

func item(name string, k *condition.Kind) service.ObjectProblem {
	return service.ObjectProblem{Object: web(name), Problem: k.New("of %s", name)}
}

// run runs a recorder in synthetic time.
func run(t *testing.T, s *server, log slog.Handler, f func(r *Recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := New(s, "node-a", slog.New(log))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		f(r)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A condition becomes one Event while it holds, and when it returns after a while.
func TestOnce(t *testing.T) {
	s := &server{}
	run(t, s, slog.DiscardHandler, func(r *Recorder) {
		taken, full := item("web", condition.AddressTaken), item("web", condition.ObjectLeftOut)
		for _, step := range []struct {
			name string
			set  []service.ObjectProblem
			wait time.Duration
			want int
		}{
			{"new", []service.ObjectProblem{taken}, time.Second, 1},
			{"again", []service.ObjectProblem{taken}, time.Second, 1},
			{"another code", []service.ObjectProblem{taken, full}, time.Second, 2},
			{"with another message", []service.ObjectProblem{{Object: web("web"), Problem: condition.AddressTaken.New("by another")}, full}, time.Second, 2},
			{"gone", nil, 8 * time.Minute, 2},
			{"back too soon", []service.ObjectProblem{taken}, 10 * time.Minute, 2},
			{"it lasts", []service.ObjectProblem{taken}, again, 2},
			{"gone", nil, time.Second, 2},
			{"back", []service.ObjectProblem{taken}, time.Second, 3},
			{"no Event", []service.ObjectProblem{taken, item("web", condition.TableNearlyFull)}, time.Second, 3},
			{"an object that is gone", []service.ObjectProblem{taken, item("gone", condition.AddressTaken)}, time.Second, 3},
		} {
			r.Set(step.set)
			time.Sleep(step.wait)
			if len(s.events) != step.want {
				var conditions []string
				for _, i := range step.set {
					conditions = append(conditions, fmt.Sprint(i))
				}
				t.Errorf("step %q, %v after these conditions hold: %q: the API server has %d Events, want %d; the last one is %s", step.name, step.wait, conditions,
					len(s.events), step.want, last(s.events))
				return // later steps count on from here
			}
		}
	})
	if t.Failed() {
		return
	}
	if e := s.events[1]; e.Regarding.UID != "uid-web" || e.Reason != "ObjectLeftOut" || !strings.HasPrefix(e.Note, "node node-a: of web: ") || e.ReportingInstance != "beeline-node-a" {
		t.Errorf("the Event of a Service that is left out is %s, of object UID %s, from %s; want ObjectLeftOut of uid-web, from beeline-node-a", last(s.events[:2]), e.Regarding.UID, e.ReportingInstance)
	}
	if a, b := s.events[0], s.events[2]; a.Name == b.Name || strings.Contains(a.Note, "node-a") {
		t.Errorf("a condition that came again has the Events %s (%s) and %s (%s); want two names, and no node in the text", last(s.events[:1]), a.Name, last(s.events[:3]), b.Name)
	}
}

// last is the last of some Events in the words of a failed test.
func last(events []*eventsv1.Event) string {
	if len(events) == 0 {
		return "none"
	}
	e := events[len(events)-1]
	return fmt.Sprintf("%s of %s %q", e.Reason, e.Regarding.Name, e.Note)
}

// A flood is cut: the queue is bounded, and Events leave it slowly.
func TestFlood(t *testing.T) {
	s := &server{}
	run(t, s, slog.DiscardHandler, func(r *Recorder) {
		for i := range 10000 {
			r.Note(item(fmt.Sprint("web-", i), condition.EndpointsLost))
		}
		time.Sleep(refill - time.Second)
		if len(s.events) != burst {
			t.Errorf("of 10,000 conditions at once the API server has %d Events, want a burst of %d", len(s.events), burst)
		}
		time.Sleep(10 * refill)
		if n := len(s.events); n != burst+10 {
			t.Errorf("of 10,000 conditions at once the API server has %d Events %v later, want %d: one each %v after the burst", n, 10*refill, burst+10, refill)
		}
		if n := len(r.queued); n >= maxQueued {
			t.Errorf("of 10,000 conditions at once %d Events wait, want less than %d", n, maxQueued)
		}
	})
}

// Without permission there is one line in the log, and no request of that namespace until much later, when the log
// tells how many Events were not sent. Errors of other kinds are not logged at all, and cost one Event each.
func TestRefused(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))
	// As of the admission plugin NamespaceLifecycle: it says nothing of other Events.
	terminating := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("unable to create new content in namespace default because it is being terminated"))
	terminating.ErrStatus.Details.Causes = append(terminating.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
	for _, c := range []struct {
		err         error
		asked, logs int
	}{{forbidden, 1, 1}, {terminating, 3, 0}, {errors.New("no route to host"), 3, 0}, {apierrors.NewAlreadyExists(schema.GroupResource{}, "x"), 3, 0}} {
		var log strings.Builder
		s := &server{err: c.err}
		run(t, s, slog.NewTextHandler(&log, nil), func(r *Recorder) {
			for i := range 3 {
				r.Note(item(fmt.Sprint(i), condition.AddressTaken))
				time.Sleep(refusedPause / 4)
			}
			if s.asked != c.asked || strings.Count(log.String(), "\n") != c.logs {
				t.Errorf("the API server refuses 3 Events of the namespace default with %q: it has %d requests, want %d; the log has %d lines, want %d:\n%s", c.err, s.asked, c.asked,
					strings.Count(log.String(), "\n"), c.logs, &log)
			}
			asked := s.asked
			r.Note(service.ObjectProblem{Object: service.Ref{Kind: service.KindService, Namespace: "shop", Name: "web"}, Problem: condition.AddressTaken.New("x")})
			time.Sleep(time.Second)
			if s.asked != asked+1 {
				t.Errorf("the API server has refused Events of the namespace default with %q: it has %d requests for an Event of the namespace shop, want 1", c.err, s.asked-asked)
			}
			time.Sleep(refusedPause)
			s.err = nil
			r.Note(item("later", condition.AddressTaken))
			time.Sleep(time.Second)
			if len(s.events) != 1 {
				t.Errorf("the API server has refused Events with %q, and takes one again: it has %d, want 1", c.err, len(s.events))
			}
			if muted := strings.Contains(log.String(), "namespace=default events=2"); muted != (c.err == error(forbidden)) {
				t.Errorf("the API server has refused Events of the namespace default with %q: the log says at the end that 2 were not sent: %t, want %t; the log:\n%s", c.err, muted, !muted, &log)
			}
		})
	}
}

// What all nodes find is reported by two of them, under one name, and by every node if it is about the node.
func TestShare(t *testing.T) {
	for _, n := range []int{1, 2, 3, 50} {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint("node-", i))
		}
		for object := range 200 {
			found := 0
			for _, name := range names {
				if shareOf(name, slices.Values(names)).has(fmt.Sprint("Service default/web-", object)) {
					found++
				}
			}
			if found != min(n, reporters) {
				t.Fatalf("%d of %d nodes report object %d, want %d", found, n, object, reporters)
			}
		}
	}
	if !shareOf("unknown", slices.Values([]string{"a", "b", "c"})).has("x") {
		t.Error("a node without a Node object reports nothing")
	}
	event := func(node string, k *condition.Kind) string {
		return newAt(nil, node, nil, func() time.Time { return time.Unix(1e9, 0) }).event(item("web", k), "uid").Name
	}
	if event("a", condition.AddressTaken) != event("b", condition.AddressTaken) {
		t.Error("two nodes write two Events of one conflict")
	}
	if event("a", condition.ObjectLeftOut) == event("b", condition.ObjectLeftOut) {
		t.Error("the Events of two nodes have one name")
	}
}

func TestLimitsOfTheAPI(t *testing.T) {
	r := New(nil, strings.Repeat("n", 200), slog.New(slog.DiscardHandler))
	e := r.event(service.ObjectProblem{Object: web(strings.Repeat("w", 252) + ".x"), Problem: condition.AddressTaken.New("%s", strings.Repeat("ü", 1000))}, "uid")
	if len(e.Name) > maxName || len(e.Note) > maxNote || len(e.ReportingInstance) > 128 || !strings.HasPrefix(e.Note, "üü") {
		t.Errorf("name of %d bytes, note of %d, instance of %d", len(e.Name), len(e.Note), len(e.ReportingInstance))
	}
}
