// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/api"
)

// A restart can raise and lower limits, without effect on clients.
func TestLimitsChangeUnderLoad(t *testing.T) {
	w := startWorld(t, "node-a")
	w.write("sticky", objects(w.sticky("sticky", 2, "a2 b1", 600))...)
	w.apply("web", objects(w.web("web", 1, "a2 b1"))...)
	kept := w.hold(clients, 1)
	stuck := pick(t, w.Host("a3"), ipv6, ipv6.clusterIP(2))
	l := w.startLoad("a Service", w.hosts("a1 a2 node-a"), ipv4, ipv4.clusterIP(1), "a2 b1")
	for _, flags := range [][]string{
		{"--max-frontends=100000", "--max-backends=300000", "--max-slots=600000",
			"--max-services=70000", "--max-source-ranges=70000", "--max-affinity=70000"},
		{"--max-frontends=64", "--max-backends=300", "--max-slots=300",
			"--max-services=300", "--max-source-ranges=64", "--max-affinity=1000"},
		{"--max-frontends=1000"},
	} {
		l.awaitMore(w, 50)
		ids := w.observe()
		w.must(w.agent().Kill())
		w.agent().Flags = flags
		w.start()
		if now := w.observe(); now.services != ids.services || now.backends != ids.backends {
			t.Errorf("%v: the tables hold\n%s\nwant, as before,\n%s", flags, now.services, ids.services)
		}
		w.apply("more", objects(w.web("more", 3, "b2"))...) // the new tables are in use
		w.wantMeet(t, clients, ipv6, ipv6.clusterIP(3), "b2")
		w.remove("more")
		if got := pick(t, w.Host("a3"), ipv6, ipv6.clusterIP(2)); got != stuck {
			t.Errorf("%v: a client with affinity goes to %s, want %s as before", flags, got, stuck)
		}
		for _, pin := range w.pins(w.agent()) {
			if strings.HasSuffix(pin, "_new") {
				t.Errorf("%v: pin %s remains", flags, pin)
			}
		}
		l.awaitMore(w, 50)
	}
	w.wantAlive(t, "after all restarts", kept)
	l.wantNoFailure(t)
}

// A limit below what is in use is refused, naming its flag. Nothing has changed then: the previous state
// serves, and an agent with the old limit takes over as usual.
func TestLimitBelowWhatIsInUse(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "a2 b1 b2"))...)
	before, pins := w.observe(), w.pins(w.agent())
	w.must(w.agent().Stop())
	for _, flag := range []string{"max-frontends", "max-backends", "max-slots", "max-services"} {
		// The last of a flag's values counts. The other tables' new sizes make it likely that one was
		// resized before the refusal.
		w.agent().Flags = []string{"--max-frontends=1000", "--max-backends=1000", "--max-slots=1000", "--max-services=1000",
			"--max-affinity=1000", "--max-source-ranges=1000", "--" + flag + "=1"}
		w.must(w.agent().StartOnly())
		wantEnd(t, w.agent(), 1, "--"+flag)
		for _, f := range []family{ipv4, ipv6} {
			w.wantMeet(t, clients, f, f.clusterIP(1), "a2 b1 b2")
		}
		if now := w.pins(w.agent()); !slices.Equal(now, pins) {
			t.Errorf("--%s: the pins are %v, want %v as before", flag, now, pins)
		}
	}
	w.agent().Flags = nil
	w.start()
	if now := w.observe(); now.services != before.services || now.backends != before.backends {
		t.Errorf("the tables hold\n%s\nwant, as before,\n%s", now.services, before.services)
	}
}

// A full table is an error of the Service that does not fit, with the flag to raise; all other Services are
// served, and that one once there is room.
func TestTableBecomesFull(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--max-frontends=8"} // two Services of both families
	w.start()
	for n := range uint8(3) {
		name := fmt.Sprintf("web%d", n+1)
		w.apply(name, objects(w.web(name, n+1, "b1"))...)
	}
	full := func(s *api.Status) bool { return s.Sync.LeftOut == 1 && s.Sync.Failing == 0 }
	w.must(w.agent().WaitFor("complaining", full))
	out, err := w.agent().CLI("status")
	wantExit(t, err, 3)
	if !strings.Contains(out, "Service default/web3: left out: it needs 4 entries of table frontends") || !strings.Contains(out, "--max-frontends") {
		t.Errorf("status names neither Service default/web3 nor --max-frontends:\n%s", out)
	}
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(2), "b1")
	})
	w.remove("web1")
	w.must(w.agent().WaitFor("content", func(s *api.Status) bool { return s.Sync.LeftOut == 0 && s.Sync.Failing == 0 }))
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(2), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(3), "b1")
	})
}

// An affinity table that is too small costs affinity, and never a connection.
func TestAffinityTableIsTooSmall(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--max-affinity=1"}
	w.start()
	w.applySticky(stickyPods, nil)
	for range 4 {
		for _, from := range w.hosts("a1 a2 a3 node-a") {
			picks(t, from, ipv4)
			picks(t, from, ipv6)
		}
	}
}
