// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/node/sockdiag"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

// A borrowed world is used by one test after the other, because an agent's start takes most of a second of CPU
// time, nearly all of it in the kernel's verifier. A test may borrow a world if it changes only objects, flows
// and servers, which reset restores, or restores the rest itself. Agents that it stopped are started again for
// the next test. A world in which a test failed is not used again.

// idleLimit bounds the worlds that wait for the next test.
const idleLimit = 6

// idle are the worlds that no test uses, the last used one last.
var idle struct {
	sync.Mutex
	worlds []*world
}

// borrowWorld is startWorld for a test that may share its world.
func borrowWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	return borrowWorldOf(t, lab.Shape{}, nil, flags...)
}

// borrowWorldOf is borrowWorld for a lab of a certain shape, with agents on node-a and on further nodes.
func borrowWorldOf(t *testing.T, shape lab.Shape, nodes []string, flags ...string) *world {
	t.Helper()
	t.Parallel()
	needs.Root(t)
	kind := fmt.Sprint(shape, nodes, flags)
	w := takeIdle(kind)
	if w == nil {
		w = &world{kind: kind, folder: &node.Folder{}, agents: map[string]*node.Agent{}}
	}
	t.Cleanup(func() { w.giveBack(t) })
	w.t, w.users = t, append(w.users, t.Name())
	if w.Lab == nil {
		w.must(w.build(shape, nodes, flags))
	}
	w.must(w.StartServers())
	w.startAgents()
	w.must(w.noteCounters())
	return w
}

func takeIdle(kind string) *world {
	idle.Lock()
	defer idle.Unlock()
	i := slices.IndexFunc(idle.worlds, func(w *world) bool { return w.kind == kind })
	if i < 0 {
		return nil
	}
	w := *idle.worlds[i] // a goroutine that the test before left does not see this test
	idle.worlds = slices.Delete(idle.worlds, i, i+1)
	return &w
}

// build makes the lab and its agents, which are not started yet.
func (w *world) build(shape lab.Shape, nodes, flags []string) (err error) {
	if w.folder.Path, err = os.MkdirTemp("", "beeline-test-"); err != nil {
		return err
	}
	if w.Lab, err = lab.Up(lab.Config{Temporary: true, Shape: shape}); err != nil {
		return err
	}
	if slices.Contains(flags, "--edge-mode=xdp") {
		if err := w.ReadyForXDP(); err != nil {
			return err
		}
	}
	for _, host := range append([]string{"node-a"}, nodes...) {
		w.agents[host] = w.newAgent(host, flags...)
	}
	w.agent = w.agents["node-a"]
	return w.folder.Put("cluster", node.Cluster(w.Lab)...)
}

// giveBack makes the world available to the next test, or removes it after a failure.
func (w *world) giveBack(t *testing.T) {
	if !t.Failed() {
		if err := w.reset(); err != nil {
			t.Errorf("restoring the world after the test: %v", err)
		}
	}
	var unused *world
	if t.Failed() {
		t.Logf("the world was used by %s", strings.Join(w.users, ", "))
		for _, host := range slices.Sorted(maps.Keys(w.agents)) {
			t.Logf("the agent of %s printed:\n%s", host, w.agents[host].Log)
		}
		unused = w
	} else {
		idle.Lock()
		idle.worlds = append(idle.worlds, w)
		if len(idle.worlds) > idleLimit {
			// In two statements: Delete moves the others, and Go does not say whether it does so first.
			unused = idle.worlds[0]
			idle.worlds = slices.Delete(idle.worlds, 0, 1)
		}
		idle.Unlock()
	}
	if err := unused.remove(); err != nil {
		t.Errorf("removing a world: %v", err)
	}
}

// reset removes the objects of a test, its flows, its connections and what hosts have learned of path MTUs.
func (w *world) reset() error {
	files, err := filepath.Glob(filepath.Join(w.folder.Path, "*.yaml"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".yaml"); name != "cluster" && name != "revision" {
			if err := w.folder.Remove(name); err != nil {
				return err
			}
		}
	}
	for _, a := range w.agents {
		if !a.Running() {
			continue
		}
		if err := w.folder.Await(a); err != nil {
			return err
		}
	}
	for _, a := range w.agents {
		if err := forgetClients(a.BPFFS()); err != nil {
			return err
		}
	}
	if err := w.endConnections(); err != nil {
		return err
	}
	return w.forgetPathMTUs()
}

// timeWait is TCP_TIME_WAIT of net/tcp_states.h.
const timeWait sockdiag.States = 1 << 6

// endConnections ends what is left of TCP connections at pods and the client. The packets that would end them
// are dropped without entries, and a pod would answer a SYN from the same port with an ACK of the old connection.
// Clients keep those in TIME_WAIT, of which there may be thousands.
func (w *world) endConnections() error {
	states := sockdiag.AllStates &^ (sockdiag.Listening | sockdiag.Closed)
	if err := endConnectionsOf(w.Host("client"), states&^timeWait); err != nil {
		return err
	}
	for _, pod := range w.Pods() {
		if err := endConnectionsOf(pod, states); err != nil {
			return err
		}
	}
	return nil
}

func endConnectionsOf(h *lab.Host, states sockdiag.States) error {
	return h.Do(func() error {
		left, err := sockdiag.List(unix.IPPROTO_TCP, states)
		for _, s := range left {
			_, failed := sockdiag.Destroy(s)
			err = errors.Join(err, failed)
		}
		return err
	})
}

// forgetClients removes all flows and all clients with session affinity.
func forgetClients(bpffs string) error {
	flows, err := conntrack.Open(bpffs)
	if err != nil {
		return err
	}
	if _, err := conntrack.Flush(flows, func(uint32) bool { return true }, nil); err != nil {
		return err
	}
	tables, err := bpf.OpenTables(bpffs)
	if err != nil {
		return err
	}
	var clients []bpf.AffinityKey
	if err := tables.Affinity.Walk(func(e *bpf.AffinityEntry) bool { clients = append(clients, e.Key); return true }); err != nil {
		return err
	}
	for _, key := range clients {
		if err := tables.Affinity.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// forgetPathMTUs removes the path MTUs that the hosts have learned.
func (w *world) forgetPathMTUs() error {
	hosts := append(w.Nodes(), append(w.Pods(), w.Host("client"))...)
	for _, h := range hosts {
		for _, family := range []string{"-4", "-6"} {
			if out, err := h.Command(context.Background(), "ip", family, "route", "flush", "cache").CombinedOutput(); err != nil {
				return fmt.Errorf("host %s: ip %s route flush cache: %w: %s", h.Name, family, err, out)
			}
		}
	}
	return nil
}

// noteCounters has the counters of this test begin with zero.
func (w *world) noteCounters() error {
	w.before = map[string]map[string]uint64{}
	for host, a := range w.agents {
		s, err := a.Status()
		if err != nil {
			return err
		}
		w.before[host] = s.Edge.Counters
	}
	return nil
}

// statusOf gets an agent's status. In a borrowed world the edge's counters begin with the test.
func (w *world) statusOf(a *node.Agent) (*api.Status, error) {
	s, err := a.Status()
	if err == nil && s.Edge != nil {
		for reason, n := range w.before[a.Host.Name] {
			s.Edge.Counters[reason] -= n
		}
	}
	return s, err
}

// edgeCounters is what node-a's edge has counted since the test began, for its messages.
func (w *world) edgeCounters() string {
	w.t.Helper()
	return node.Counted(w.status().Edge.Counters)
}

// remove ends the agents and takes the lab down.
func (w *world) remove() error {
	if w == nil {
		return nil
	}
	var errs []error
	for host, a := range w.agents {
		if err := a.Kill(); err != nil {
			errs = append(errs, fmt.Errorf("the agent of %s ended before it was killed: %w", host, err))
		}
	}
	if w.Lab != nil {
		errs = append(errs, w.Down())
	}
	return errors.Join(append(errs, os.RemoveAll(w.folder.Path))...)
}

// removeIdle removes the worlds that no test uses.
func removeIdle() error {
	idle.Lock()
	defer idle.Unlock()
	var errs []error
	for _, w := range idle.worlds {
		errs = append(errs, w.remove())
	}
	idle.worlds = nil
	return errors.Join(errs...)
}
