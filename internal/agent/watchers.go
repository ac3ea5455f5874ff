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

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/offline"
)

// watchers are the clients that watch the edge's events. The programs send events only while there is a
// watcher; otherwise they only check whether to send.
type watchers struct {
	events   *bpf.Events // nil without an edge
	services bpf.Hash[uint32, bpf.ServiceName]
	reader   *offline.EventReader
	log      *slog.Logger

	mu   gosync.Mutex
	all  map[*watcher]bool
	now  *reading      // nil without watchers
	done chan struct{} // closed when the last reading ended; nil before the first
}

// reading is one period in which watchers exist and events are read.
type reading struct {
	stop  context.CancelFunc
	ready bool // the programs send events
}

// watcher is one client. It loses events that it does not read in time.
type watcher struct {
	filter  api.Filter
	ready   chan struct{}
	notices chan *api.Event
	lost    atomic.Uint64
	failed  chan error
}

// backlog is the maximum number of events queued for a watcher.
const backlog = 8192

func newWatchers(d *bpf.Datapath, log *slog.Logger) (*watchers, error) {
	events, err := bpf.NewEvents(d)
	return &watchers{events: events, services: d.Tables.Services, reader: offline.NewEventReader(d.Tables.Services), log: log, all: map[*watcher]bool{}}, err
}

func (w *watchers) add(f api.Filter) *watcher {
	one := &watcher{filter: f, ready: make(chan struct{}), notices: make(chan *api.Event, backlog), failed: make(chan error, 1)}
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
			<-before // the ring has only one reader
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

// end stops reading. The caller holds the lock.
func (w *watchers) end() {
	if w.now != nil {
		w.now.stop()
		w.now = nil
	}
}

// close stops reading, and returns when the programs no longer send events.
func (w *watchers) close() {
	w.mu.Lock()
	w.end()
	done := w.done
	w.mu.Unlock()
	if done != nil {
		<-done
	}
}

// read sends events to all watchers until ctx ends.
func (w *watchers) read(ctx context.Context, r *reading) {
	err := w.events.Read(ctx, func() { w.ready(r) }, w.broadcast, w.countLost)
	if err == nil {
		return
	}
	w.log.Error("cannot report the edge's events", "error", err)
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

func (w *watchers) broadcast(e *bpf.EdgeEvent) {
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

func (w *watchers) countLost(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		one.lost.Add(n)
	}
}

// Write timeout of a client, and interval at which lost events are reported.
const (
	sendTimeout  = 10 * time.Second
	lossInterval = 200 * time.Millisecond
)

// stream serves a client that watches events.
func (w *watchers) stream(to http.ResponseWriter, request *http.Request) {
	filter := api.FilterFrom(request.URL.Query())
	if err := filter.Check(); err != nil {
		http.Error(to, err.Error(), http.StatusBadRequest)
		return
	}
	if err := offline.CheckNames(&filter, w.services); err != nil {
		http.Error(to, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if w.events == nil {
		http.Error(to, "there are no edge events: the agent runs with --edge-mode=off", http.StatusNotFound)
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
		w.log.Debug("a watcher was disconnected", "error", err)
	}
}

func (one *watcher) send(ctx context.Context, to http.ResponseWriter) error {
	out, encoder := http.NewResponseController(to), json.NewEncoder(to)
	write := func(n api.EventMessage) error {
		if err := out.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			return err
		}
		if err := encoder.Encode(n); err != nil {
			return err
		}
		if len(one.notices) > 0 {
			return nil // more events follow at once
		}
		return out.Flush()
	}
	if err := write(api.EventMessage{}); err != nil {
		return err
	}
	losses := time.NewTicker(lossInterval)
	defer losses.Stop()
	for {
		var n api.EventMessage
		select {
		case <-ctx.Done():
			return nil
		case err := <-one.failed:
			return fmt.Errorf("watch the edge: %w", err)
		case n.Event = <-one.notices:
		case <-losses.C:
		}
		n.LostEvents = one.lost.Swap(0)
		if n.Event == nil && n.LostEvents == 0 {
			continue
		}
		if err := write(n); err != nil {
			return err
		}
	}
}
