// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"beeline.io/beeline/internal/cluster/source"
)

// link tracks whether the server answers. The last request of any kind that was answered or failed decides. A
// failure is ignored if a later request was answered, because the server may have recovered since.
type link struct {
	log *slog.Logger

	mu    sync.Mutex
	known bool // a request has completed
	up    bool
	since time.Time
	err   string
	// Requests are numbered in the order in which they start: begun is the last one, and lastAnswered the
	// last one that was answered.
	begun, lastAnswered uint64
	// back is closed when the server answers again.
	back chan struct{}
	// flaps counts consecutive failures soon after an answer.
	flaps int
}

// A server that fails within shortUp after an answer has not recovered. After maxFlaps such failures, answers
// no longer wake waiting requests, and state changes are not logged, until the server has answered for longer
// than shortUp.
const (
	shortUp  = 2 * time.Second
	maxFlaps = 3
)

func (l *link) flapping() bool { return l.flaps >= maxFlaps }

func newLink(log *slog.Logger) *link {
	return &link{log: log, since: time.Now(), back: make(chan struct{})}
}

// roundTripper adapts a function to http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// observe wraps a transport so that the link sees the result of each request. Status 5xx is from a server that
// cannot work, or from a proxy without a server.
func (l *link) observe(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		number := l.begin()
		response, err := next.RoundTrip(r)
		switch {
		case err == nil && isRedirect(response.StatusCode):
			// A redirect is followed by another request, which decides.
		case err == nil && response.StatusCode < http.StatusInternalServerError:
			l.answered(number)
		case err == nil:
			l.failed(number, fmt.Sprintf("it answers %s", response.Status))
		case !errors.Is(r.Context().Err(), context.Canceled):
			l.failed(number, err.Error())
		}
		return response, err
	})
}

func isRedirect(status int) bool {
	return status >= http.StatusMultipleChoices && status < http.StatusBadRequest
}

func (l *link) begin() (number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	return l.begun
}

func (l *link) answered(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastAnswered = max(l.lastAnswered, number)
	if l.up {
		if l.flapping() && time.Since(l.since) > shortUp {
			l.flaps = 0
			l.log.Info("the API server answers again", "for", time.Since(l.since).Round(time.Millisecond))
		}
		return
	}
	if l.known && !l.flapping() {
		l.log.Info("the API server answers again", "after", time.Since(l.since).Round(time.Millisecond))
	}
	l.known, l.up, l.since, l.err = true, true, time.Now(), ""
	if !l.flapping() {
		close(l.back)
	}
}

func (l *link) failed(number uint64, err string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number < l.lastAnswered {
		return
	}
	if l.err == "" && !l.flapping() {
		l.log.Warn("the API server does not answer; the last state stays in use until it does", "error", err)
	}
	if l.up {
		l.noteFlap(err)
		l.since, l.back = time.Now(), make(chan struct{})
	}
	l.known, l.up, l.err = true, false, err
}

// noteFlap records the failure of a server that answered before. The caller holds the lock.
func (l *link) noteFlap(err string) {
	if time.Since(l.since) > shortUp {
		l.flaps = 0
		return
	}
	if l.flaps++; l.flaps == maxFlaps {
		l.log.Warn("the API server answers some requests and fails others; requests are sent less often, and this message is not repeated until the server has answered for longer", "error", err)
	}
}

// unreached records a failed request that observe did not see, such as one with too many redirects.
func (l *link) unreached(err error) {
	l.mu.Lock()
	reported := l.up || l.err != ""
	l.mu.Unlock()
	if !reported {
		l.failed(l.begin(), err.Error())
	}
}

func (l *link) connection() source.Connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return source.Connection{Connected: l.up, Since: l.since, Error: l.err}
}

// pause waits before a retry. If the server is not answering, it returns as soon as the server answers any
// request.
func (l *link) pause(ctx context.Context, d time.Duration) {
	l.mu.Lock()
	back := l.back
	if l.up {
		back = nil
	}
	l.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-back:
	}
}

// linkClock is the clock of a reflector: its waits are pauses.
type linkClock struct {
	clock.RealClock
	ctx  context.Context
	link *link
}

func (c linkClock) After(d time.Duration) <-chan time.Time {
	done := make(chan time.Time, 1)
	go func() {
		c.link.pause(c.ctx, d)
		done <- time.Now()
	}()
	return done
}
