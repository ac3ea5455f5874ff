// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"testing"

	"beeline.io/beeline/internal/datapath"
)

// A sweep has the door let in the packets of all flows and what package sync admits, after the
// programs that were running: but not before the edge has begun, nor while a device may have
// the programs of an earlier agent.
func TestDoorOfSweep(t *testing.T) {
	asks := datapath.FrontendKey{Address: datapath.AddressFrom(addrs("10.96.0.1")[0]), Port: datapath.NetworkOrder(80), Protocol: tcp}
	other := datapath.FrontendKey{Address: datapath.AddressFrom(addrs("10.96.0.2")[0]), Port: datapath.NetworkOrder(80), Protocol: tcp}
	var w *world
	w = newWorld(t, Config{Mode: TC, Timeouts: DefaultTimeouts, Admit: func() { w.kernel.door.Admit(asks) }}, hardware)
	waited := 0
	w.kernel.waited = func() { waited++ }
	now := datapath.Now()
	table := w.kernel.flows.Tracks.(flowTable)
	put(table, tcp, client, backend, [2]int{both, both}, [2]uint32{now, now})
	shut := func(want bool) {
		t.Helper()
		w.sweep()
		if got := w.kernel.door.Shut(); got != want {
			t.Fatalf("the door is shut: %v, want %v", got, want)
		}
	}
	shut(false)
	w.kernel.tcError = errors.New("planted")
	w.Start()
	shut(false)
	w.kernel.tcError = nil
	w.lookAgain()
	waited = 0
	shut(true)
	if waited == 0 {
		t.Error("the sweep has not waited for the programs that were running")
	}
	for key := range table {
		to := datapath.FrontendKey{Address: datapath.Address(key.Destination), Port: key.DestinationPort, Protocol: key.Protocol}
		if !w.kernel.door.Admits(to) {
			t.Errorf("the door does not let in what has the record %v", to)
		}
	}
	if !w.kernel.door.Admits(asks) || w.kernel.door.Admits(other) {
		t.Errorf("the door lets in what asks for a frontend: %v; for none: %v", w.kernel.door.Admits(asks), w.kernel.door.Admits(other))
	}
}
