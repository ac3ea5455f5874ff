// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/util/wakeup"
)

// follower lists and watches one kind.
type follower struct {
	kind   *kind
	client rest.Interface
	timing timing
	link   *link
	state  *state

	credentials *credentials

	noFields atomic.Bool // the server does not support the field selector
	// forbidden is the time since which every list was forbidden; zero if the last one was not. Only run
	// uses it.
	forbidden time.Time
}

func (s *Source) follower(k *kind) *follower {
	return &follower{kind: k, client: s.client[k.resource.GroupVersion()], timing: s.timing, link: s.link, state: s.state, credentials: &s.credentials}
}

// run lists and watches until ctx ends. The reflector restarts watches that end normally; it returns if a list
// failed or is needed.
func (f *follower) run(ctx context.Context) {
	// Problems and the link's messages replace the reflector's log messages.
	quiet := logr.Discard()
	ctx = klog.NewContext(ctx, quiet)
	lists := &cache.ListWatch{ListWithContextFunc: f.List, WatchFuncWithContext: f.Watch}
	reflector := cache.NewReflectorWithOptions(lists, &item{}, &store{kind: f.kind, state: f.state}, cache.ReflectorOptions{
		Logger: &quiet,
		Name:   f.kind.resource.Resource,
		Clock:  linkClock{ctx: ctx, link: f.link},
		Backoff: &wait.Backoff{
			Duration: f.timing.first, Factor: 2, Jitter: 0.5, Steps: 30, Cap: f.timing.max,
		},
	})
	backoff := wakeup.Backoff{First: f.timing.first, Most: f.timing.max}
	for {
		begin := time.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		if ctx.Err() != nil {
			return
		}
		most := f.timing.max
		if f.failed(err) {
			most = f.timing.maxRefused
		}
		if time.Since(begin) > f.timing.maxRefused {
			backoff.Reset()
		}
		delay := backoff.Next()
		f.link.pause(ctx, delay+rand.N(delay/2+1))
		backoff.Most = most
	}
}

// failed records why a list failed, and reports whether the server refused it. The link reports a server that
// cannot be reached.
func (f *follower) failed(err error) (refused bool) {
	if !apierrors.IsForbidden(err) {
		f.forbidden = time.Time{}
	}
	if err == nil {
		return false
	}
	f.state.failedList(f.kind)
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		refused = code >= 400 && code < 500 && code != http.StatusTooManyRequests
		// Drop the client's text about earlier attempts.
		err = &apierrors.StatusError{ErrStatus: status.Status()}
	}
	switch {
	case apierrors.IsForbidden(err) && f.forbidden.IsZero():
		f.forbidden = time.Now()
		return false
	case apierrors.IsForbidden(err) && time.Since(f.forbidden) < f.timing.starting:
		return false
	case refused:
		f.state.failed(f.kind, f.complaint(err), f.kind.lost != "" && !apierrors.IsUnauthorized(err))
	case f.link.connection().Connected:
		f.state.failed(f.kind, f.complaint(err), false)
	default:
		f.link.unreached(err)
	}
	return refused
}

func (f *follower) complaint(err error) source.Problem {
	resource := f.kind.resource.GroupResource().String()
	p := source.Problem{Object: string(f.kind.name), Warning: f.kind.lost != ""}
	lost := cmp.Or(f.kind.lost, "the last state, if any, stays in use; otherwise nothing is served")
	switch {
	case apierrors.IsUnauthorized(err):
		return source.Problem{
			Reason: fmt.Sprintf("the API server does not accept the credentials (401 Unauthorized): %s; the last state, if any, stays in use", f.credentials.refused(time.Now())),
			Remedy: f.credentials.remedy,
		}
	case apierrors.IsForbidden(err):
		p.Reason = fmt.Sprintf("access is denied (%v): %s; grant the verbs list and watch on %s", err, lost, resource)
	case apierrors.IsNotFound(err):
		p.Reason = fmt.Sprintf("the API server does not have %s of %s: %s", resource, f.kind.resource.GroupVersion(), lost)
	default:
		p.Reason = fmt.Sprintf("cannot be read (%v): %s", err, lost)
	}
	return p
}
