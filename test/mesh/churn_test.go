// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

const (
	churnTime, churnTimeShort = 10 * time.Minute, 4 * time.Second
	churnWorkers              = 16 // of each direction
	churnPort                 = 7105
	// What the agent's memory may grow by between the middle and the end of the time.
	churnGrowth = 16 << 20
	// The same for its descriptors, some of which it has open for a moment only. A leak would be thousands.
	churnDescriptors = 16
)

// TestChurn: new connections through the proxy in both directions, as many as the machine makes. The agent and the
// tables do not grow with them, and nothing is left when they are closed.
func TestChurn(t *testing.T) {
	if testing.Short() { // else it has the machine for itself
		t.Parallel()
	}
	w := newWorld(t)
	w.startAgent()
	for _, flags := range [][]string{nil, {"--mesh-sockmap"}} {
		t.Run(strings.Join(append([]string{"hook"}, flags...), " and "), func(t *testing.T) {
			w := w.in(t)
			if flags != nil {
				w.must(w.agent.Kill())
				w.agent.Flags = append(w.agent.Flags, flags...)
				w.startAgent()
				w.needSockmap()
			}
			w.churn(w.startProxy(haproxy, "a1"))
		})
	}
}

// A churnState is what must not grow.
type churnState struct {
	memory, descriptors int
	rows                map[string]int
}

func (w *world) churn(s *sidecar) {
	for _, host := range []string{"b1", "a1"} {
		w.serve(w.Host(host), churnPort, answerAndClose)
	}
	load := &churnLoad{w: w, to: map[string]netip.AddrPort{
		s.pod.Name: netip.AddrPortFrom(w.Host("b1").Addr4, churnPort),
		"client":   netip.AddrPortFrom(s.pod.Addr4, churnPort),
	}}
	load.run(time.Second) // the proxy is known, and rows of programs are there
	before := w.settledRows(nil)
	half := churnTime / 2
	if testing.Short() {
		half = churnTimeShort / 2
	}
	first := load.run(half)
	middle := load.during
	second := load.run(half)
	end := load.during
	w.t.Logf("%.0f connections a second through the proxy, then %.0f; in the middle %+v, at the end %+v",
		float64(first)/half.Seconds(), float64(second)/half.Seconds(), middle, end)
	if first == 0 || second == 0 {
		w.t.Error("there were no connections")
	}
	if end.memory > middle.memory+churnGrowth || end.descriptors > middle.descriptors+churnDescriptors {
		w.t.Errorf("the agent has grown from %+v in the middle to %+v at the end", middle, end)
	}
	for name, n := range end.rows {
		// Each connection has two or four sockets, and some of the last ones are still being closed.
		if limit := middle.rows[name] + 8*2*churnWorkers; n > limit {
			w.t.Errorf("%s has %d rows at the end, and had %d in the middle", name, n, middle.rows[name])
		}
	}
	if after := w.settledRows(before); !maps.Equal(after, before) {
		w.t.Errorf("without connections the tables have %v rows, and had %v before", after, before)
	}
}

func answerAndClose(conn tcpConn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(conn, make([]byte, 4)); err == nil {
		conn.Write([]byte("pong"))
	}
}

// A churnLoad opens connections from hosts to addresses.
type churnLoad struct {
	w      *world
	to     map[string]netip.AddrPort
	during churnState // at the end of the last run, before its connections ended
}

// run opens connections for some time, one request on each, and returns how many it were.
func (l *churnLoad) run(lasting time.Duration) (n int64) {
	l.w.t.Helper()
	ctx, cancel := context.WithTimeout(l.w.t.Context(), patience+lasting)
	defer cancel()
	var group sync.WaitGroup
	var stop atomic.Bool
	var count atomic.Int64
	for from, to := range l.to {
		for range churnWorkers {
			group.Go(func() {
				for !stop.Load() && ctx.Err() == nil {
					if err := l.request(ctx, l.w.Host(from), to); err != nil {
						l.w.t.Errorf("from %s, after %d connections: %v", from, count.Load(), err)
						return
					}
					count.Add(1)
				}
			})
		}
	}
	time.Sleep(lasting)
	n = count.Load()
	l.during = l.w.churnState()
	stop.Store(true)
	group.Wait()
	return n
}

// request: the server closes first, so that no port of the client is kept.
func (l *churnLoad) request(ctx context.Context, from *lab.Host, to netip.AddrPort) error {
	conn, err := from.Dial(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience / 2))
	if from.Role == lab.RolePod && !local(conn).IsLoopback() {
		return errBypass
	}
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "pong" {
		err = fmt.Errorf("the answer is %q", answer)
	}
	return err
}

func (w *world) churnState() (s churnState) {
	w.t.Helper()
	process := filepath.Join("/proc", strconv.Itoa(w.agent.PID()))
	status, err := os.ReadFile(filepath.Join(process, "status"))
	w.must(err)
	for line := range strings.Lines(string(status)) {
		if kilobytes, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, err := fmt.Sscan(kilobytes, &s.memory)
			w.must(err)
			s.memory <<= 10
		}
	}
	if s.memory == 0 {
		w.t.Fatalf("%s/status has no memory: %s", process, status)
	}
	descriptors, err := os.ReadDir(filepath.Join(process, "fd"))
	w.must(err)
	s.descriptors, s.rows = len(descriptors), w.rows()
	return s
}

// tablesOfConnections are those whose rows come and go with connections. The others are fixed, or the kernel frees
// their rows with their sockets.
var tablesOfConnections = []string{bpf.MeshMapMeshHandshakes, bpf.MeshMapMeshMembers, bpf.MeshMapMeshReaders,
	bpf.MeshMapMeshSockets, bpf.MeshMapMeshPodPrograms, bpf.MeshMapMeshListeners, bpf.MeshMapMeshProxies}

// rows counts those of tables.
func (w *world) rows() map[string]int {
	w.t.Helper()
	all := map[string]int{}
	for _, name := range tablesOfConnections {
		m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		w.must(err)
		for range 5 {
			all[name] = max(all[name], w.countKeys(m))
		}
		m.Close()
	}
	if len(all) == 0 {
		w.t.Fatal("there are no tables")
	}
	return all
}

// countKeys counts those of a table. If it changes meanwhile, some may be missed.
func (w *world) countKeys(m *ebpf.Map) int {
	w.t.Helper()
	seen := map[string]bool{}
	var key []byte
	for {
		var at any
		if key != nil {
			at = key
		}
		next, err := m.NextKeyBytes(at)
		w.must(err)
		if next == nil || seen[string(next)] { // a row was deleted, and the kernel has begun anew
			return len(seen)
		}
		key = slices.Clone(next)
		seen[string(key)] = true
	}
}

// settledRows returns the rows once they are as wanted, or no longer change.
func (w *world) settledRows(wanted map[string]int) (rows map[string]int) {
	w.t.Helper()
	last := w.rows()
	for end := time.Now().Add(patience / 4); ; last = rows {
		time.Sleep(time.Second)
		rows = w.rows()
		if time.Now().After(end) || maps.Equal(rows, wanted) || wanted == nil && maps.Equal(rows, last) {
			return rows
		}
	}
}
