// SPDX-License-Identifier: Apache-2.0

// Package optout maintains the table of the network namespaces of pods that have opted out of the socket shortcut.
package optout

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/podcgroup"
)

// Tracker keeps the table consistent with the pods that have opted out, as their namespaces appear, change and
// vanish. Its methods may be called from any goroutine. The table has no other writer.
type Tracker struct {
	table    Table
	log      *slog.Logger
	follower *podcgroup.Follower
	where    string // the kubelet's directories are searched for

	mu    sync.Mutex      // taken after the follower's
	known bool            // SetPods has been called
	pods  map[string]*pod // by UID
	// held counts the pods of each cookie in the table. leftover holds an earlier agent's cookies that no
	// pod has claimed yet.
	held     map[uint64]int
	leftover map[uint64]bool
}

// pod is a pod that has opted out.
type pod struct {
	service.OptOut
	since time.Time // when it was last found or lost
	// directory is its cgroup; empty: it has none.
	directory string
	// cookie of its namespace in the table; 0 if not found.
	cookie  uint64
	err     error
	scanned bool // at least once
}

// New returns a Tracker without pods. byHand are the directories in which to search for the kubelet's; if
// empty, New uses all cgroup hierarchies and the agent's cgroupRoot. Existing rows of the table stay until SetPods.
func New(table Table, byHand []string, cgroupRoot string, log *slog.Logger) (*Tracker, error) {
	return newTracker(table, podcgroup.FollowerConfig{PodCgroups: byHand, CgroupRoot: cgroupRoot, Log: log})
}

func newTracker(table Table, c podcgroup.FollowerConfig) (*Tracker, error) {
	t := &Tracker{
		table: table, log: c.Log, where: "in the cgroup hierarchies that the agent sees",
		pods: map[string]*pod{}, held: map[uint64]int{}, leftover: map[uint64]bool{},
	}
	c.Scanned = t.scanned
	t.follower = podcgroup.NewFollower(c)
	if len(c.PodCgroups) > 0 {
		t.where = "at or below " + strings.Join(c.PodCgroups, " or ") + " (--pod-cgroups)"
	}
	left, err := table.All()
	if err != nil {
		return nil, err
	}
	for cookie := range left {
		t.leftover[cookie] = true
	}
	return t, nil
}

// SetPods sets the complete list of opted-out pods (R4). When it returns, those that run are in the table, and
// pods that are not in the list are not.
func (t *Tracker) SetPods(all []service.OptOut) {
	wanted := t.addPods(all)
	// Add new pods first: if a static pod was replaced, its namespace may now belong to another pod.
	t.follower.Set(slices.Collect(maps.Keys(wanted)))
	t.mu.Lock()
	for uid, p := range t.pods {
		if !wanted[podcgroup.Key{UID: uid}] {
			t.remove(p, "the pod is gone, or its annotation")
			delete(t.pods, uid)
		}
	}
	t.mu.Unlock()
	t.removeLeftover()
}

func (t *Tracker) addPods(all []service.OptOut) (wanted map[podcgroup.Key]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, wanted = true, map[podcgroup.Key]bool{}
	for _, o := range all {
		wanted[podcgroup.Key{UID: o.UID}] = true
		if p := t.pods[o.UID]; p != nil {
			p.OptOut = o
		} else {
			t.pods[o.UID] = &pod{OptOut: o, since: time.Now()}
		}
	}
	return wanted
}

// scanned writes the namespace of a pod to the table after a scan.
func (t *Tracker) scanned(key podcgroup.Key, l podcgroup.Location, _ bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pods[key.UID]
	if p == nil {
		return
	}
	p.scanned, p.directory, p.err = true, l.Directory, l.Err
	if errors.Is(l.Err, podcgroup.ErrOnNode) { // with hostNetwork there is no namespace to be found
		p.err = nil
	}
	switch {
	case l.Namespace != 0:
		t.add(p, l.Namespace, time.Now())
	case p.cookie != 0:
		t.remove(p, "its cgroup is gone")
		p.since = time.Now()
	}
}

// retryInterval is when namespaces are removed again that could not be.
const retryInterval = time.Second

// Run tracks the pods until ctx ends. It always returns nil.
func (t *Tracker) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- t.follower.Run(ctx) }()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-retry.C:
			t.removeLeftover()
		}
	}
}
