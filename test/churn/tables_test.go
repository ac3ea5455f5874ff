// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/node"
)

// usable lists the endpoints that take new requests (R10), as decision does.
func (s *service) usable(family int) string {
	addresses := func(with condition) (all []string) {
		for _, e := range s.endpoints {
			if e.condition == with {
				all = append(all, netip.AddrPortFrom(e.addresses()[family], s.port).String())
			}
		}
		slices.Sort(all)
		return all
	}
	all := addresses(ready)
	if len(all) == 0 {
		all = addresses(terminating)
	}
	if len(all) == 0 {
		return "reject"
	}
	return strings.Join(all, " ")
}

// wantSame compares descriptions by name.
func wantSame(t *testing.T, kind string, got, want map[string]string) {
	t.Helper()
	differ := 0
	show := func(format string, args ...any) {
		if differ++; differ <= 10 {
			t.Errorf(format, args...)
		}
	}
	for name, text := range want {
		if other, ok := got[name]; !ok {
			show("%s %s is missing, want %s", kind, name, text)
		} else if other != text {
			show("%s %s is\n  %s, want\n  %s", kind, name, other, text)
		}
	}
	for name, text := range got {
		if _, ok := want[name]; !ok {
			show("%s %s is left over: %s", kind, name, text)
		}
	}
	if differ > 10 {
		t.Errorf("and %d more", differ-10)
	}
	t.Logf("%d of kind %s compared", len(want), kind)
}

// size is a process's use of resources.
type size struct {
	rss int // KiB
	fds int
	cpu time.Duration // since its start
}

func (s size) String() string {
	return fmt.Sprintf("%d KiB resident, %d descriptors, %v of CPU", s.rss, s.fds, s.cpu)
}

func sizeOf(t *testing.T, a *node.Agent) (s size) {
	t.Helper()
	proc := filepath.Join("/proc", fmt.Sprint(a.PID()))
	status, err := os.Open(filepath.Join(proc, "status"))
	must(t, err)
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		fmt.Sscanf(lines.Text(), "VmRSS: %d kB", &s.rss)
	}
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	must(t, err)
	// Fields 14 and 15 of proc_pid_stat(5), in ticks of 10 ms; the name before may contain blanks.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, text := range fields[11:13] {
		ticks, err := strconv.Atoi(text)
		must(t, err)
		s.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	must(t, err)
	s.fds = len(fds)
	if s.rss == 0 || s.fds == 0 {
		t.Fatalf("cannot read the agent's use of resources from %s: %v", proc, s)
	}
	return s
}

// wantNotGrown allows a tenth more. Garbage may be collected first: what the agent keeps, it keeps.
func wantNotGrown(t *testing.T, a *node.Agent, before size) {
	t.Helper()
	hasGrown := func(s size) bool { return s.rss > before.rss+before.rss/10 || s.fds > before.fds+before.fds/10 }
	after := sizeOf(t, a)
	for deadline := time.Now().Add(30 * time.Second); hasGrown(after) && time.Now().Before(deadline); after = sizeOf(t, a) {
		time.Sleep(time.Second)
	}
	if hasGrown(after) {
		t.Errorf("the agent has grown from %v to %v, want at most a tenth", before, after)
	}
}
