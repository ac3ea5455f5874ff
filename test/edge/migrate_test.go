// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// otherVersions builds two agents with other versions of the layout, which no release has.
var otherVersions = sync.OnceValues(func() ([2]string, error) { return node.BuildVersions(filepath.Dir(program)) })

// olderProgram may name an older release to migrate from first.
const olderProgram = "BEELINE_OLDER_PROGRAM"

// R37: agents with another layout of the tables, two in a row, and one with tables of other sizes, take over while
// connections and UDP flows continue and begin, at the edge and at sockets: none fails or changes its backend,
// and clients with session affinity keep theirs. The older version is refused afterwards, and says what to do.
func TestTablesAreMigrated(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		others, err := otherVersions()
		if err != nil {
			t.Fatal(err)
		}
		algorithm := map[string]string{"tc": "random", "xdp": "maglev"}[mode]
		w := newWorld(t, "--edge-mode="+mode, "--algorithm="+algorithm)
		w.agent.Program = cmp.Or(os.Getenv(olderProgram), program)
		w.must(w.agent.Start())
		w.lead()
		w.manyClients()
		plain, all := w.everywhere("web", 1, "a1", "b1", "b2")
		w.apply("web", objects(plain, all)...)
		sticky, all := w.everywhere("sticky", 2, "a1", "b1", "b2")
		sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		w.apply("sticky", objects(sticky, all)...)
		clients := w.manyFlows()
		ended := w.loadAt(2*time.Millisecond, []netip.AddrPort{w.address("NodePort", 1, 0), w.address("NodePort", 1, 1)})
		for _, step := range []struct {
			name     string
			program  string
			maxFlows int
		}{
			{"this version", program, fewFlows},
			{"a larger table", program, 2 * fewFlows},
			{"another layout", others[0], 2 * fewFlows},
			{"one more layout, and a smaller table", others[1], fewFlows},
		} {
			w.must(w.agent.Kill())
			w.agent.Program, w.agent.MaxFlows = step.program, step.maxFlows
			w.killInTheMiddle()
			if err := w.agent.Start(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			time.Sleep(time.Second)
		}
		ended()
		clients.end()
		if t.Failed() {
			t.Logf("counters: %v", w.edgeCounters())
		}
		w.must(w.agent.Kill())
		w.mustRefuse(program, "tables_v1001")
	})
}

// killInTheMiddle starts the agent and kills it while it migrates tables to its own.
func (w *world) killInTheMiddle() {
	w.t.Helper()
	w.must(w.agent.StartOnly())
	deadline := time.Now().Add(patience)
	for left := 0; left < 2 && !ready(w.agent); time.Sleep(time.Millisecond) {
		dirs, err := filepath.Glob(filepath.Join(w.agent.BPFFS(), "tables_v*", "frontends"))
		w.must(err)
		if left = len(dirs); time.Now().After(deadline) {
			w.t.Fatal("the agent does not become ready")
		}
	}
	time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
	w.must(w.agent.Kill())
}

func ready(a *node.Agent) bool {
	s, err := a.Status()
	return err == nil && s.Source.Synced
}

// mustRefuse starts an agent that does not know tables of that version.
func (w *world) mustRefuse(older, directory string) {
	w.t.Helper()
	w.agent.Program = older
	err := w.agent.Start()
	if err == nil || !strings.Contains(err.Error(), directory) || !strings.Contains(err.Error(), "beeline cleanup") {
		w.t.Errorf("an older version with %s present: %v", directory, err)
	}
}

// flows are long connections and UDP flows, each with a backend that it keeps.
type flows struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

// manyFlows begins flows to the Services 1 and 2 (with session affinity) of everywhere. end checks that each
// has kept its backend.
func (w *world) manyFlows() *flows {
	ctx, cancel := context.WithCancel(w.t.Context())
	f := &flows{cancel: cancel}
	for n := range 8 {
		for _, network := range []string{"tcp", "udp"} {
			w.keep(ctx, f, "an external client by "+network, w.openFrom(nth(clientRanges[n%2], 16+n), network, w.address("NodePort", 1, n%2)))
			conn, err := w.Host("a2").DialWith(ctx, lab.DialOptions{}, network, w.address("ClusterIP", 1, n%2).String())
			w.must(err)
			w.keep(ctx, f, "a pod by "+network, conn)
		}
		f.all.Go(func() {
			from, first := nth(clientRanges[n%2], 100+n), ""
			for i := 0; ctx.Err() == nil; i++ {
				// Some last for a second, so that phases of the migration change meanwhile.
				answers, err := w.askTimes(ctx, 1+50*rand.IntN(2), from, w.address("NodePort", 2, n%2))
				if first == "" && len(answers) > 0 {
					first = answers[0]
				}
				if err != nil || slices.ContainsFunc(answers, func(pod string) bool { return pod != first }) {
					w.t.Errorf("a client with session affinity, connection %d: pods %v instead of %q, %v", i, answers, first, err)
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return f
}

// askTimes connects, sends requests, fewer if ctx ends, and returns the pods that answered.
func (w *world) askTimes(ctx context.Context, times int, from netip.Addr, to netip.AddrPort) (pods []string, err error) {
	asked, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	conn, err := w.Host("client").DialWith(asked, lab.DialOptions{Local: netip.AddrPortFrom(from, 0), Control: anyAddress}, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for range times {
		answer, err := lab.Ask(asked, conn, "hello")
		if err != nil {
			return pods, err
		}
		if pods = append(pods, answer.Pod); ctx.Err() != nil {
			return pods, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return pods, nil
}

// keep sends requests on a connection, one after the other.
func (w *world) keep(ctx context.Context, f *flows, who string, conn net.Conn) {
	f.all.Go(func() {
		defer conn.Close()
		first := ""
		for i := 0; ctx.Err() == nil; i++ {
			asked, cancel := context.WithTimeout(w.t.Context(), patience)
			answer, err := lab.Ask(asked, conn, "hello")
			cancel()
			if err != nil || first != "" && answer.Pod != first {
				w.t.Errorf("%s, request %d: pod %q instead of %q, %v", who, i, answer.Pod, first, err)
				return
			}
			first = answer.Pod
			time.Sleep(30 * time.Millisecond)
		}
	})
}

func (f *flows) end() {
	f.cancel()
	f.all.Wait()
}
