// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"strings"
	"testing"
)

// legacy replaces the table filter of iptables-legacy at the router: 40 chains, and rules.
func (w *world) legacy(rules string) {
	w.t.Helper()
	var table strings.Builder
	table.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n")
	for i := range 40 {
		fmt.Fprintf(&table, ":c%02d - [0:0]\n", i)
	}
	w.feed("router", table.String()+rules+"COMMIT\n", "iptables-legacy-restore")
}

// Rules of iptables-legacy have their effect on flows that were offloaded, a condition names them, and flows are
// offloaded again when they are gone.
func TestLegacyRules(t *testing.T) {
	w := newWorld(t, "--offload-devices=c0,s?")
	w.start()
	limited, other, six := w.open("udp", plain, 0), w.open("tcp", dnat, 0), w.open("tcp", plain, 1)
	w.settle(limited, other, six)
	w.legacy(fmt.Sprintf("-A FORWARD -p udp --dport %d -j c39\n-A c39 -m limit --limit 1/min --limit-burst 1 -j RETURN\n-A c39 -j DROP\n", limited.port))
	limited.stops()
	other.wantStack()
	w.settle(six)
	if text, _ := w.agent.CLI("status"); !*stack && (!strings.Contains(text, "OffloadLegacyRules: iptables-legacy rules in chain FORWARD of table filter") || !strings.Contains(text, "iptables-nft")) {
		t.Errorf("status:\n%s", text)
	}
	w.legacy("")
	w.settle(limited, other, six)
	if text, _ := w.agent.CLI("status"); strings.Contains(text, "OffloadLegacyRules") {
		t.Errorf("status:\n%s", text)
	}
	w.wantNoneInvalid()
}
