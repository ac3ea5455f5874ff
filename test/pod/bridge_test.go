// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// Pods behind a bridge have the shortcut soon after they have talked to each other, although the node itself has not
// talked to them; and again when an agent starts after the node has forgotten them. Status counts devices behind which
// no pod is known.
func TestPodsOfBridgesAreFound(t *testing.T) {
	w := newWorld(t, lab.Shape{Pods: lab.PodsBridge}, "--pod-devices=auto")
	agent := w.agents["node-a"]
	w.must(agent.Start())
	unknown := func() (names []string) {
		for _, d := range w.pods("node-a").Devices {
			if d.PodUnknown {
				names = append(names, d.Name)
			}
		}
		return names
	}
	w.eventually("status counts three devices", func() bool { return len(unknown()) == 3 })
	if text, err := agent.CLI("status"); err != nil || !strings.Contains(text, "; no pod is known behind 3 devices") {
		t.Errorf("status: %v:\n%s", err, text)
	}
	talk := func() {
		for i, to := range addresses(w.Host("a2"), lab.PortTCP) {
			if _, err := w.ask("a1", "tcp", to); err != nil {
				t.Errorf("family %d: %v", i, err)
			}
		}
	}
	talk()
	w.awaitPods("node-a", "a1", "a2")
	if names := unknown(); len(names) != 1 || names[0] != "a3" {
		t.Errorf("no pod is known behind %v, want a3", names)
	}
	before := w.pods("node-a").Packets["path_local"]
	talk()
	if w.pods("node-a").Packets["path_local"] == before {
		t.Error("connections between the pods did not take the shortcut")
	}

	w.must(agent.Stop())
	w.run("node-a", "ip", "neigh", "flush", "dev", lab.BridgeDevice)
	w.must(agent.Start())
	w.awaitPods("node-a", "a1", "a2")
}
