// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/printable"
	"beeline.io/beeline/internal/util/wakeup"
)

// lookInterval is the time between two looks at the programs: after as long at most a program that starts is switched.
const lookInterval = 2 * time.Second

// A Mode is what the agent does about programs with the library.
type Mode string

// The modes. Ignore is also the empty one.
const (
	ModeIgnore Mode = "ignore" // does not look
	ModeOn     Mode = "on"     // lists and counts connections, and lets programs use rings
	ModeOff    Mode = "off"    // lists and counts them, and keeps all on the kernel
)

// Modes lists them.
var Modes = []Mode{ModeIgnore, ModeOn, ModeOff}

// A Watcher looks at the programs of pods again and again.
type Watcher struct {
	mode      Mode
	processes func() []Process
	log       *slog.Logger

	looking sync.Mutex // while a look is under way
	totals  totals

	mu     sync.Mutex
	report *Report // the last one; nil before the first look
	took   time.Duration
	sums   Counters
	failed string
}

// NewWatcher returns a watcher of the programs of pods.
func NewWatcher(mode Mode, processes func() []Process, log *slog.Logger) *Watcher {
	return &Watcher{mode: mode, processes: processes, log: log, totals: totals{seen: map[identity]*seenPage{}},
		sums: Counters{Refused: map[string]uint64{}}}
}

// Run looks until ctx ends. It always returns nil. Switches stay as they are then.
func (w *Watcher) Run(ctx context.Context) error {
	for running := true; running; running = wakeup.Sleep(ctx, lookInterval) {
		if _, err := w.look(false); err != nil {
			w.fail(err)
		}
	}
	return nil
}

func (w *Watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != err.Error() {
		condition.MeshHostStackUnread.Log(w.log, "mesh: look at programs with the host stack", "error", err)
	}
	w.failed = err.Error()
}

// Report looks now, also at why programs do not have the library.
func (w *Watcher) Report(context.Context) (*Report, error) { return w.look(true) }

func (w *Watcher) look(causes bool) (*Report, error) {
	w.looking.Lock()
	defer w.looking.Unlock()
	begun := time.Now()
	report, err := Look(w.processes(), Options{Causes: causes, Switch: w.set})
	if err != nil {
		return nil, err
	}
	took := time.Since(begun)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.totals.add(report, &w.sums)
	w.report, w.failed = report, ""
	if !causes {
		w.took = took
	}
	return report, nil
}

// set writes a switch that is not as it should be.
func (w *Watcher) set(isOff bool, set func(off bool) error) error {
	if off := w.mode == ModeOff; isOff != off {
		return set(off)
	}
	return nil
}

// snapshot returns the last report, the totals, and how long a look of Run takes.
func (w *Watcher) snapshot() (r Report, sums Counters, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.report == nil {
		return Report{}, w.sums.clone(), 0
	}
	return *w.report, w.sums.clone(), w.took
}

// State returns a part of the status line.
func (w *Watcher) State() string {
	report, _, took := w.snapshot()
	counts := report.states()
	text := fmt.Sprintf("host stack %s: %s, %s", w.mode, plural.Of(counts[On]+counts[Off]+counts[Idle]+counts[Unread], "program"), plural.Of(report.Sessions(), "connection"))
	if counts[Unread] > 0 {
		text += fmt.Sprintf(", %s not readable", plural.Of(counts[Unread], "program"))
	}
	return text + fmt.Sprintf(", a look takes %v", took.Round(100*time.Microsecond))
}

func (r *Report) states() map[State]int {
	counts := map[State]int{}
	for _, p := range r.Programs {
		counts[p.State]++
	}
	return counts
}

// Conditions returns what is wrong with programs, once for each pod.
func (w *Watcher) Conditions() (all condition.List) {
	report, _, _ := w.snapshot()
	all = append(ofPods(report.Programs, condition.MeshHostStackIOUring, func(p *Program) string {
		if p.IOUring {
			return "has the library and an io_uring"
		}
		return ""
	}), ofPods(report.Programs, condition.MeshHostStackUnread, func(p *Program) string {
		if p.State == Unread || p.State == Hidden {
			return printable.Line(p.Why)
		}
		return ""
	})...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != "" {
		all = append(all, condition.MeshHostStackUnread.New("no program with the host stack could be looked at: %s", w.failed))
	}
	return all
}

// ofPods returns a condition for each pod that has programs of which wrong says something. It names the first one.
func ofPods(programs []Program, kind *condition.Kind, wrong func(*Program) string) (all condition.List) {
	others, first := map[string]int{}, map[string]int{}
	for i := range programs {
		p := &programs[i]
		text := wrong(p)
		if text == "" {
			continue
		}
		if _, known := first[p.Pod]; known {
			others[p.Pod]++
			continue
		}
		first[p.Pod] = len(all)
		all = append(all, kind.New("process %d (%s): %s", p.PIDs[0], printable.Line(p.Name), text).At(p.Pod))
	}
	for pod, n := range others {
		all[first[pod]].Message += fmt.Sprintf(" (and %d other programs)", n)
	}
	return all
}

// Metrics adds the metrics of the programs.
func (w *Watcher) Metrics(b *metrics.Batch) {
	report, sums, _ := w.snapshot()
	counts := report.states()
	for state, label := range map[State]string{On: "on", Off: "off", Idle: "idle", Unread: "unread"} {
		b.Add("beeline_mesh_hoststack_programs", float64(counts[state]), "state", label)
	}
	b.Add("beeline_mesh_hoststack_connections", float64(report.Sessions()))
	b.Add("beeline_mesh_hoststack_attached_total", float64(sums.Attached))
	b.Add("beeline_mesh_hoststack_returned_total", float64(sums.ReturnedToKernel))
	b.Add("beeline_mesh_hoststack_violations_total", float64(sums.Violations))
	b.Add("beeline_mesh_hoststack_bytes_total", float64(sums.Sent), "direction", "sent")
	b.Add("beeline_mesh_hoststack_bytes_total", float64(sums.Received), "direction", "received")
	for _, reason := range refusals {
		b.Add("beeline_mesh_hoststack_refused_total", float64(sums.Refused[reason]), "reason", reason)
	}
}
