// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	gosync "sync"
	"sync/atomic"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
)

// EventsPath answers a GET with a stream of observe.Notice as JSON, one in a line,
// until the client goes; first an empty one as soon as events are told. The query is
// an observe.Filter.
const EventsPath = "/v1/events"

// watchers are those who are told what the edge does. While there is one, the
// programs tell; they do no more than look whether they should otherwise.
type watchers struct {
	events   *datapath.Events // nil: there is no edge
	services datapath.Hash[uint32, datapath.ServiceName]
	reader   *observe.EventReader
	log      *slog.Logger

	mu   gosync.Mutex
	all  map[*watcher]bool
	now  *reading      // nil: nobody watches
	done chan struct{} // the last reading has ended; nil: there was none
}

// reading goes on while there are watchers.
type reading struct {
	stop  context.CancelFunc
	ready bool // the programs tell
}

// watcher is one of them. What it does not take in time is lost to it.
type watcher struct {
	filter  observe.Filter
	ready   chan struct{}
	notices chan *observe.Event
	lost    atomic.Uint64
	failed  chan error
}

// backlog is how many events wait for a watcher that is slow.
const backlog = 8192

func newWatchers(d *datapath.Datapath, log *slog.Logger) *watchers {
	return &watchers{events: d.Events(), services: d.Tables.Services, reader: observe.NewEventReader(d.Tables.Services), log: log, all: map[*watcher]bool{}}
}

func (w *watchers) add(f observe.Filter) *watcher {
	one := &watcher{filter: f, ready: make(chan struct{}), notices: make(chan *observe.Event, backlog), failed: make(chan error, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[one] = true
	if w.now != nil {
		if w.now.ready {
			close(one.ready)
		}
		return one
	}
	ctx, stop := context.WithCancel(context.Background())
	now, before, done := &reading{stop: stop}, w.done, make(chan struct{})
	w.now, w.done = now, done
	go func() {
		defer close(done)
		if before != nil {
			<-before // the ring has one reader
		}
		w.read(ctx, now)
	}()
	return one
}

func (w *watchers) remove(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
	if len(w.all) == 0 {
		w.end()
	}
}

// end ends the reading. The caller holds the lock.
func (w *watchers) end() {
	if w.now != nil {
		w.now.stop()
		w.now = nil
	}
}

// close returns when the programs tell nothing any more.
func (w *watchers) close() {
	w.mu.Lock()
	w.end()
	done := w.done
	w.mu.Unlock()
	if done != nil {
		<-done
	}
}

// read tells all watchers until ctx ends.
func (w *watchers) read(ctx context.Context, r *reading) {
	err := w.events.Read(ctx, func() { w.ready(r) }, w.tell, w.lose)
	if err == nil {
		return
	}
	w.log.Error("what the edge does cannot be told", "error", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != r {
		return
	}
	for one := range w.all {
		one.failed <- err
	}
	clear(w.all)
	w.end()
}

func (w *watchers) ready(r *reading) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != r {
		return
	}
	r.ready = true
	for one := range w.all {
		close(one.ready)
	}
}

func (w *watchers) tell(e *datapath.EdgeEvent) {
	event := w.reader.Event(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		if !one.filter.Wants(event) {
			continue
		}
		select {
		case one.notices <- event:
		default:
			one.lost.Add(1)
		}
	}
}

func (w *watchers) lose(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		one.lost.Add(n)
	}
}

// How long a client may take for what it is sent, and how often losses are told.
const (
	sendTimeout  = 10 * time.Second
	lossInterval = 200 * time.Millisecond
)

// stream answers a client that watches.
func (w *watchers) stream(to http.ResponseWriter, request *http.Request) {
	filter := observe.FilterFrom(request.URL.Query())
	if err := filter.Check(); err != nil {
		http.Error(to, err.Error(), http.StatusBadRequest)
		return
	}
	if err := filter.CheckNames(w.services); err != nil {
		http.Error(to, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if w.events == nil {
		http.Error(to, "there is no edge whose packets could be watched: the agent's --edge-mode is off", http.StatusNotFound)
		return
	}
	one := w.add(filter)
	defer w.remove(one)
	select {
	case <-request.Context().Done():
		return
	case err := <-one.failed:
		http.Error(to, err.Error(), http.StatusInternalServerError)
		return
	case <-one.ready:
	}
	to.Header().Set("Content-Type", "application/jsonlines")
	err := one.send(request.Context(), to)
	if err != nil && request.Context().Err() == nil && !errors.Is(err, http.ErrAbortHandler) {
		w.log.Debug("a watcher is left", "error", err)
	}
}

func (one *watcher) send(ctx context.Context, to http.ResponseWriter) error {
	out, encoder := http.NewResponseController(to), json.NewEncoder(to)
	write := func(n observe.Notice) error {
		if err := out.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			return err
		}
		if err := encoder.Encode(n); err != nil {
			return err
		}
		if len(one.notices) > 0 {
			return nil // more is to come at once
		}
		return out.Flush()
	}
	if err := write(observe.Notice{}); err != nil {
		return err
	}
	losses := time.NewTicker(lossInterval)
	defer losses.Stop()
	for {
		var n observe.Notice
		select {
		case <-ctx.Done():
			return nil
		case err := <-one.failed:
			return fmt.Errorf("watch the edge: %w", err)
		case n.Event = <-one.notices:
		case <-losses.C:
		}
		n.Lost = one.lost.Swap(0)
		if n.Event == nil && n.Lost == 0 {
			continue
		}
		if err := write(n); err != nil {
			return err
		}
	}
}

// Watch calls ready as soon as events are told, and f for each notice, until ctx
// ends, f fails or the agent does. Errors: *observe.QuestionError for a filter that names
// what there is not.
func (c *Client) Watch(ctx context.Context, filter observe.Filter, ready func(), f func(observe.Notice) error) error {
	endless := *c
	endless.Timeout = 0
	response, err := endless.request(ctx, EventsPath+"?"+filter.Query())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	notices := json.NewDecoder(response.Body)
	for {
		var n observe.Notice
		if err := notices.Decode(&n); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("the agent tells nothing any more: %w", err)
		}
		if n == (observe.Notice{}) {
			ready()
		} else if err := f(n); err != nil {
			return err
		}
	}
}
