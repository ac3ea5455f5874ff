// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/bpf"
)

// repairedWithin is far less than --audit-interval, and far more than a second on a busy machine.
const repairedWithin = 15 * time.Second

// TestLostHooksComeBack: links of cgroups and devices that somebody detaches, and pins that somebody removes,
// are restored long before the next audit. Links without pins stay attached; for those that were detached it
// measures how long external clients are not served.
func TestLostHooksComeBack(t *testing.T) {
	w := startWorld(t, "--edge-mode=xdp")
	w.apply("web", objects(w.public("b1"))...)
	pins := w.agent.BPFFS()
	all, err := filepath.Glob(filepath.Dir(bpf.TablePath(pins, "x")) + "/*")
	w.must(err)
	tables := len(all)
	remove := func(path string) error { return os.Remove(path) }
	for _, c := range []struct {
		name, pattern string
		take          func(path string) error
	}{
		{"pins of links of devices", "links/edge-*", remove},
		{"pins of links of the cgroup", "links/*4", remove},
		{"links of devices", "links/edge-*", detach},
		{"links of the cgroup", "links/*4", detach},
		{"pins of tables", filepath.Base(filepath.Dir(bpf.TablePath(pins, "x"))) + "/*", remove},
	} {
		paths, err := filepath.Glob(filepath.Join(pins, c.pattern))
		w.must(err)
		if len(paths) == 0 {
			t.Fatalf("%s: there are none", c.name)
		}
		before, begin := w.attached(), time.Now()
		for _, path := range paths {
			if err := c.take(path); err != nil && !os.IsNotExist(err) {
				t.Logf("%s: %s: %v", c.name, filepath.Base(path), err)
			}
		}
		if strings.HasPrefix(c.name, "pins") { // nothing is wrong: what asks restores them
			w.wantExit(0)
		}
		unserved, last := time.Duration(0), begin // from the last answer before a failure to the next one
		for failing := false; (failing || !w.whole(tables)) && time.Since(begin) < patience; {
			failed := !w.isServed()
			now := time.Now()
			if failed || failing {
				unserved += now.Sub(last)
			}
			failing, last = failed, now
		}
		whole := time.Since(begin)
		t.Logf("%s: whole after %v, clients not served for %v of that", c.name, whole.Round(time.Millisecond), unserved.Round(time.Millisecond))
		if after := w.attached(); strings.HasPrefix(c.name, "pins") && !slices.EqualFunc(before, after, sameLink) {
			t.Errorf("%s: attached before: %+v, after: %+v; want the same links", c.name, before, after)
		}
		if whole > repairedWithin {
			t.Errorf("%s: whole after %v, want %v", c.name, whole, repairedWithin)
		}
	}
}

func sameLink(a, b bpf.EdgeAttachment) bool { return a.Hook == b.Hook && a.LinkID == b.LinkID }

// detach is what `bpftool link detach` does.
func detach(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Detach()
}

// whole reports whether everything is attached and pinned, by the pins.
func (w *world) whole(tables int) bool {
	w.t.Helper()
	s := w.status()
	pins, err := filepath.Glob(filepath.Join(filepath.Dir(bpf.TablePath(w.agent.BPFFS(), "x")), "*"))
	w.must(err)
	attached := w.attached()
	return len(s.Conditions.Wrong()) == 0 && len(s.Attachments) == s.ExpectedAttachments && len(pins) == tables && len(attached) == 3 &&
		!slices.ContainsFunc(attached, func(a bpf.EdgeAttachment) bool { return a.Detached })
}

// isServed asks the NodePort once.
func (w *world) isServed() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := w.Host("client").Request(ctx, "tcp", netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort).String(), "hello")
	return err == nil
}
