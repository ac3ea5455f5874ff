// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
)

// TestWhatAnAgentNeeds: without the rights or the open files that it needs, the program says what to do, and
// leaves nothing behind. It raises a low limit if permitted.
func TestWhatAnAgentNeeds(t *testing.T) {
	w := newWorld(t)
	const noRights, noRaising = "setpriv --bounding-set=-all --inh-caps=-all", "setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource"
	agent := w.agent.Command(context.Background()).Args
	pins := filepath.Join(w.Host("node-a").BPFFS, "beeline")
	for _, c := range []struct {
		before string
		args   []string
		says   string
	}{
		{noRights, agent[1:], "run it as root"},
		{noRights, []string{"cleanup", "--pins", pins}, "run it as root"},
		{"prlimit --nofile=64:64 " + noRaising, agent[1:], "the limit of open files is 64: raise it"},
	} {
		argv := append(append(strings.Fields(c.before), program), c.args...)
		out, err := w.Host("node-a").Command(context.Background(), argv...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%s beeline %s (%v): the output lacks %q:\n%s", c.before, c.args[0], err, c.says, out)
		}
	}
	if bpf.HasPins(pins) {
		t.Error("pins remain")
	}
	if w.Host("node-a").Command(context.Background(), strings.Fields("prlimit --nofile=64:64 prlimit --nofile=65536:65536 true")...).Run() == nil {
		w.agent.Wrap = strings.Fields("prlimit --nofile=64:64")
	} else {
		t.Log("not tested here: an agent that raises the limit of open files; this machine allows it to nobody (CAP_SYS_RESOURCE)")
	}
	w.must(w.agent.Start())
	w.apply("web", objects(w.public("a1"))...)
	w.wantServed("tcp", addresses(w.Host("node-a"), nodePort)[0], "a1")
	argv := append(strings.Fields(noRights), program, "status", "--pins", pins)
	if out, err := w.Host("node-a").Command(context.Background(), argv...).CombinedOutput(); err == nil || !strings.Contains(string(out), "run it as root") {
		t.Errorf("status of the tables without rights (%v): %s", err, out)
	}
	wrong := filepath.Join(w.Host("node-a").BPFFS, "beelin")
	if out, code := w.runAt("node-a", "cleanup", "--pins", wrong); code != 0 || strings.Contains(out, "is left under") || !strings.Contains(out, pins) {
		t.Errorf("cleanup in a wrong place: exit code %d:\n%s", code, out)
	}
}
