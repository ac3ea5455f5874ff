// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/reconcile"
	"beeline.io/beeline/test/lab"
)

// A watch bounds the time of the last connection to a Service. Tests judge affinity only if the bounds leave no
// doubt, however slow the machine is.
type watch struct {
	w      *world
	from   *lab.Host
	f      family
	n      uint8
	pod    string
	before time.Time // of the last connection
	after  time.Time
}

// connect makes a connection and returns whether affinity chose its backend, and bounds for the time since the
// previous one.
func (c *watch) connect(t *testing.T) (kept bool, atLeast, atMost time.Duration) {
	t.Helper()
	hits := c.w.counters(c.w.agent()).AffinityHit
	begin := time.Now()
	c.pod = pick(t, c.from, c.f, c.f.clusterIP(c.n))
	end := time.Now()
	atLeast, atMost = begin.Sub(c.after), end.Sub(c.before)
	c.before, c.after = begin, end
	return c.w.counters(c.w.agent()).AffinityHit > hits, atLeast, atMost
}

// R27: affinity ends so many seconds after the last connection. The clock has whole seconds, so it may last up
// to one second longer; it never ends early.
func TestAffinityTimeout(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.sticky("web", 1, stickyPods, 1)
	w.apply("web", objects(s, slices)...)
	for _, f := range []family{ipv4, ipv6} {
		c := &watch{w: w, from: w.Host("a1"), f: f, n: 1}
		if kept, _, _ := c.connect(t); kept {
			t.Errorf("%s: the first connection found an affinity", f.name)
		}
		time.Sleep(2500 * time.Millisecond)
		if kept, idle, _ := c.connect(t); kept {
			t.Errorf("%s: affinity of 1 s was kept after %v without a connection", f.name, idle)
		}
	}
}

// R27: the clock has whole seconds. A connection late in one second and one early in the next are a fraction of
// a second apart.
func TestAffinityTimeoutIsNotCutShort(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.sticky("web", 1, stickyPods, 1)
	w.apply("web", objects(s, slices)...)
	c := &watch{w: w, from: w.Host("a1"), f: ipv4, n: 1}
	// A pair that took longer than the timeout says nothing.
	sure, late := 0, 0
	for end := time.Now().Add(time.Minute); sure+late < 4 || sure == 0; {
		if time.Now().After(end) {
			t.Fatalf("none of %d pairs of connections was made within the timeout of 1 s", late)
		}
		awaitFraction(t, 900*time.Millisecond)
		c.connect(t)
		awaitFraction(t, 50*time.Millisecond)
		kept, _, idle := c.connect(t)
		if idle >= time.Second {
			late++
			continue
		}
		sure++
		if !kept {
			t.Errorf("affinity of 1 s had ended after less than %v", idle)
		}
	}
	if late > 0 {
		t.Logf("excused: %d of %d pairs of connections took longer than the timeout of 1 s", late, sure+late)
	}
}

// awaitFraction waits for a fraction of a second of CLOCK_MONOTONIC, the clock of affinity.
func awaitFraction(t *testing.T, fraction time.Duration) {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	wait := fraction - time.Duration(now.Nsec)
	if wait < 0 {
		wait += time.Second
	}
	time.Sleep(wait)
}

// R27: each connection restarts the timeout.
func TestAffinityTimeoutBeginsAnew(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.sticky("web", 1, stickyPods, 2)
	w.apply("web", objects(s, slices)...)
	c := &watch{w: w, from: w.Host("a1"), f: ipv4, n: 1}
	c.connect(t)
	pod, begin, late := c.pod, time.Now(), 0
	for end := begin.Add(time.Minute); time.Since(begin) < 4*time.Second; {
		if time.Now().After(end) {
			t.Fatalf("in a minute, connections were %d times further apart than the timeout of 2 s, instead of 0.7 s", late)
		}
		time.Sleep(700 * time.Millisecond)
		kept, _, idle := c.connect(t)
		if idle >= 2*time.Second { // either is right: begin again
			late++
			pod, begin = c.pod, time.Now()
			continue
		}
		if !kept || c.pod != pod {
			t.Fatalf("%v after the first connection, and less than %v after the last one, affinity of 2 s leads to %s, want %s",
				time.Since(begin), idle, c.pod, pod)
		}
	}
	if late > 0 {
		t.Logf("excused: began again %d times, after connections that were further apart than the timeout of 2 s", late)
	}
}

// R27: an affinity entry is void once its endpoint takes no new connections, and does not return with it.
func TestAffinityEndsWithItsEndpoint(t *testing.T) {
	w := startWorld(t, "node-a")
	a1 := w.Host("a1")
	for i, f := range []family{ipv4, ipv6, ipv4, ipv6} {
		s, slices := w.sticky("web", 1, "b1", 600)
		s.Annotations = map[string]string{service.AnnotationAlgorithm: service.Algorithms[i/2]}
		w.apply("web", objects(s, slices)...)
		if got := pick(t, a1, f, f.clusterIP(1)); got != "b1" {
			t.Fatalf("connection goes to %s, want b1", got)
		}
		for _, step := range []struct{ pods, want string }{
			{"a2", "a2"},          // b1 is removed
			{"a2 b1", "a2"},       // and added again
			{"a2 a3 b1 b2", "a2"}, // more endpoints take no client away
			{"a2", "a2"},
		} {
			_, slices := w.sticky("web", 1, step.pods, 600)
			w.apply("web", objects(s, slices)...)
			for range 20 {
				if got := pick(t, a1, f, f.clusterIP(1)); got != step.want {
					t.Fatalf("%s: with endpoints %s a connection goes to %s, want %s", f.name, step.pods, got, step.want)
				}
			}
		}
		_, slices = w.sticky("web", 1, "a2 a3", 600)
		endpoints(slices, w.Host("a2"), draining)
		w.apply("web", objects(s, slices)...)
		w.wantMeet(t, "a1", f, f.clusterIP(1), "a3")
	}
}

// R27: nor does the entry pass to an endpoint that gets the removed one's ID. There are three IDs, so the third
// endpoint after b1 gets its.
func TestAffinityDoesNotPassToAnotherEndpoint(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--max-backends=3"}
	w.start()
	apply := func(pods string) {
		t.Helper()
		s, slices := w.sticky("web", 1, pods, 600)
		w.apply("web", objects(s, slices[:1])...) // IPv4
	}
	apply("b1")
	c := &watch{w: w, from: w.Host("a1"), f: ipv4, n: 1}
	c.connect(t)
	old := w.backendID(t, "b1")
	apply("b2")
	w.must(w.agent().WaitFor("done with b1", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Tables, func(f reconcile.Usage) bool { return f.Table == bpf.SockMapBackends && f.Used == 1 })
	}))
	apply("a2 a3")
	if got := []uint32{w.backendID(t, "a2"), w.backendID(t, "a3")}; !slices.Contains(got, old) {
		t.Fatalf("the endpoints have the IDs %v, want %d among them, as b1 had", got, old)
	}
	if kept, _, _ := c.connect(t); kept {
		t.Errorf("an affinity entry for b1 was kept, and leads to %s", c.pod)
	}
}

// backendID is the tables' ID of a pod's IPv4 endpoint.
func (w *world) backendID(t *testing.T, pod string) uint32 {
	t.Helper()
	tables, err := w.agent().Tables()
	w.must(err)
	for _, b := range tables.Backends {
		if b.Address == ipv4.pod(w.Host(pod)).String() {
			return b.ID
		}
	}
	t.Fatalf("the tables have no endpoint on %s", pod)
	return 0
}

// R27: affinity is switched on and off, and its timeout changed, while clients connect.
func TestAffinityIsSwitchedLive(t *testing.T) {
	w := startWorld(t, "node-a")
	a1 := w.Host("a1")
	for _, f := range []family{ipv4, ipv6} {
		on, slices := w.sticky("web", 1, stickyPods, 600)
		off, _ := w.balanced("web", 1, stickyPods)
		for range 2 {
			w.apply("web", objects(off, slices)...)
			w.wantMeet(t, "a1", f, f.clusterIP(1), stickyPods)
			w.apply("web", objects(on, slices)...)
			w.wantMeet(t, "a1", f, f.clusterIP(1), pick(t, a1, f, f.clusterIP(1)))
		}
		short, _ := w.sticky("web", 1, stickyPods, 1)
		w.apply("web", objects(short, slices)...)
		c := &watch{w: w, from: a1, f: f, n: 1}
		c.connect(t)
		time.Sleep(2500 * time.Millisecond)
		if kept, idle, _ := c.connect(t); kept {
			t.Errorf("%s: a timeout changed to 1 s had not expired after %v", f.name, idle)
		}
	}
}

// R27, R37: affinity survives the agent.
func TestAffinityOutlivesTheAgent(t *testing.T) {
	w := startWorld(t, "node-a")
	w.applySticky(stickyPods, nil)
	a1 := w.Host("a1")
	before := picks(t, a1, ipv4)
	w.must(w.agent().Kill())
	wantSame(t, "without the agent", picks(t, a1, ipv4), before)
	w.start()
	wantSame(t, "with a new agent", picks(t, a1, ipv4), before)
}
