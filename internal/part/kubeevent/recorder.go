// SPDX-License-Identifier: Apache-2.0

// Package kubeevent writes conditions of Services, Pods and this node's Node as Events (events.k8s.io/v1), for
// `kubectl describe`. Events are a help, and no more: they are limited in number, never delay the agent, and are
// dropped if the API server does not take them.
package kubeevent

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/printable"
	"beeline.io/beeline/internal/util/wakeup"
)

const (
	// again is how long no second Event of the same condition of an object is written, by any node.
	again = 10 * time.Minute
	// burst is the number of Events that may be written at once; after that, one every refill.
	burst  = 20
	refill = 10 * time.Second
	// maxQueued bounds the Events that wait.
	maxQueued = 200
	// writeTimeout bounds one request.
	writeTimeout = 10 * time.Second
	// refusedPause is the pause after the API server has refused an Event of a namespace, for lack of permission.
	refusedPause = 10 * time.Minute
	// maxNote is the limit of the API, in bytes.
	maxNote = 1024
)

// A Writer sends Events to the API server.
type Writer interface {
	// UID returns the UID of an object, without which `kubectl describe` does not find its Events.
	UID(ctx context.Context, object service.Ref) (types.UID, error)
	CreateEvent(ctx context.Context, event *eventsv1.Event) error
}

type key struct {
	object service.Ref
	code   condition.Code
}

// A Recorder decides which conditions become Events. No method waits for the API server, except Run.
type Recorder struct {
	writer Writer
	node   string
	log    *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	share   share
	current map[key]bool            // of the last Set
	queued  []service.ObjectProblem // in order
	sent    map[key]time.Time       // in the last period of again
	dropped int                     // for lack of room in the queue
	wake    wakeup.Signal

	// Only Run uses these.
	tokens   float64
	filled   time.Time
	refused  map[string]*refusal // by namespace
	reported bool                // that Events are refused
}

// A refusal is that of the Events of a namespace, since a time.
type refusal struct {
	since time.Time
	muted int // Events that were not sent because of it
}

// New returns a Recorder for a node.
func New(writer Writer, node string, log *slog.Logger) *Recorder {
	return newAt(writer, node, log, time.Now)
}

func newAt(writer Writer, node string, log *slog.Logger, now func() time.Time) *Recorder {
	return &Recorder{writer: writer, node: node, log: log, now: now, current: map[key]bool{}, sent: map[key]time.Time{},
		refused: map[string]*refusal{}, wake: wakeup.NewSignal(), tokens: burst, filled: now()}
}

// SetNodes sets the names of all Nodes: what every node finds is reported by two of them.
func (r *Recorder) SetNodes(names iter.Seq[string]) {
	s := shareOf(r.node, names)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.share = s
}

// Set replaces the conditions that hold. Those that the last Set did not have become Events.
func (r *Recorder) Set(all []service.ObjectProblem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.current
	r.current = map[key]bool{}
	for _, i := range all {
		k := key{i.Object, i.Problem.Code}
		if !before[k] && !r.current[k] {
			r.add(i)
		}
		r.current[k] = true
	}
}

// Note makes an Event of something that happened.
func (r *Recorder) Note(i service.ObjectProblem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(i)
}

// add queues an Event unless another node reports it, or one was written lately. The caller holds the lock.
func (r *Recorder) add(i service.ObjectProblem) {
	k := key{i.Object, i.Problem.Code}
	kind, known := kinds[k.code]
	if !known || kind.everywhere && !r.share.has(i.Object.String()) {
		return
	}
	maps.DeleteFunc(r.sent, func(_ key, at time.Time) bool { return r.now().Sub(at) >= again })
	if _, lately := r.sent[k]; lately {
		return
	}
	if len(r.queued) >= maxQueued {
		r.dropped++
		return
	}
	r.sent[k] = r.now()
	r.queued = append(r.queued, i)
	r.wake.Send()
}

// Run writes the queued Events until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		item, ok := r.next()
		if !ok {
			if !r.wake.Wait(ctx) {
				return nil
			}
			continue
		}
		if wait := r.take(); wait > 0 && !wakeup.Sleep(ctx, wait) {
			return nil
		}
		r.write(ctx, item)
	}
}

// next takes the first Event from the queue.
func (r *Recorder) next() (item service.ObjectProblem, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queued) == 0 {
		return service.ObjectProblem{}, false
	}
	if r.dropped > 0 {
		r.log.Warn("more Events than the limit; the rest is only in the status", "dropped", r.dropped)
		r.dropped = 0
	}
	item = r.queued[0]
	r.queued = r.queued[1:]
	return item, true
}

// take uses up the permission for one Event, and returns how long to wait for it.
func (r *Recorder) take() time.Duration {
	now := r.now()
	r.tokens = min(burst, r.tokens+now.Sub(r.filled).Seconds()/refill.Seconds())
	r.filled = now
	r.tokens--
	return max(0, time.Duration(-r.tokens*float64(refill)))
}

// write sends an Event, and drops it if that fails.
func (r *Recorder) write(ctx context.Context, i service.ObjectProblem) {
	if r.muted(i) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	uid, err := r.writer.UID(ctx, i.Object)
	if apierrors.IsNotFound(err) {
		return // the object is gone
	}
	if err == nil {
		err = r.writer.CreateEvent(ctx, r.event(i, uid))
	}
	switch {
	case err == nil:
		delete(r.refused, namespaceOf(i))
		r.reported = len(r.refused) > 0
	case apierrors.IsAlreadyExists(err): // written by another node, or before a restart
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // it goes with its objects
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		r.refused[namespaceOf(i)] = &refusal{since: r.now()}
		if !r.reported {
			r.log.Warn("the API server refuses Events; problems are in the status and in the log: grant create on events.events.k8s.io and get on services and pods",
				"namespace", namespaceOf(i), "error", err, "next", refusedPause)
			r.reported = true
		}
	case ctx.Err() == nil || ctx.Err() == context.DeadlineExceeded:
		r.log.Debug("an Event was not written", "object", i.Object.String(), "code", i.Problem.Code, "error", err)
	}
}

// muted reports whether an Event is not sent because the API server has lately refused one of its namespace.
func (r *Recorder) muted(i service.ObjectProblem) bool {
	refused := r.refused[namespaceOf(i)]
	if refused == nil {
		return false
	}
	if r.now().Sub(refused.since) < refusedPause {
		refused.muted++
		return true
	}
	if refused.muted > 0 {
		r.log.Warn("Events were not sent because the API server had refused one of their namespace", "namespace", namespaceOf(i), "events", refused.muted)
	}
	delete(r.refused, namespaceOf(i))
	return false
}

// namespaceOf is that of an object's Events.
func namespaceOf(i service.ObjectProblem) string {
	return cmp.Or(i.Object.Namespace, metav1.NamespaceDefault)
} // default: as for all Events of Nodes

// event returns the Event of a condition. Its name follows from the object, the code and the time, so that
// several nodes that find the same write one Event.
func (r *Recorder) event(i service.ObjectProblem, uid types.UID) *eventsv1.Event {
	k := kinds[i.Problem.Code]
	now := r.now()
	id := fmt.Sprintf("%s %s %s %d", i.Object, uid, i.Problem.Code, now.Unix()/int64(again.Seconds()))
	if !k.everywhere {
		id += " " + r.node
	}
	return &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(i), Name: eventName(i.Object.Name, id)},
		EventTime:  metav1.NewMicroTime(now),

		ReportingController: "beeline", ReportingInstance: clip("beeline-"+r.node, 128),
		Action: k.action, Reason: k.reason, Type: corev1.EventTypeWarning,
		Note:      clip(printable.Text(note(i, r.node, k)), maxNote),
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: string(i.Object.Kind), Namespace: i.Object.Namespace, Name: i.Object.Name, UID: uid},
	}
}

// note is the condition's text; what concerns one node names it.
func note(i service.ObjectProblem, node string, k kind) string {
	if k.everywhere || i.Object.Kind == service.KindNode {
		return i.Problem.Text()
	}
	return "node " + node + ": " + i.Problem.Text()
}

// maxName is the maximum length of an object's name (RFC 1123 subdomain).
const maxName = 253

func eventName(object, id string) string {
	suffix := "." + hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, hash(id)))
	return strings.TrimRight(clip(object, maxName-len(suffix)), ".-") + suffix
}

// clip returns at most max bytes of a text, without half a character at the end.
func clip(text string, max int) string {
	if len(text) <= max {
		return text
	}
	return strings.ToValidUTF8(text[:max], "")
}
