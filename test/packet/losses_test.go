// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

// loss returns what is counted of clients' packets that did not reach a backend for a reason.
func (w *world) loss(t testing.TB, backend netip.Addr, reason uint32) (loss bpf.BackendLoss) {
	t.Helper()
	err := w.maps[bpf.EdgeTCMapBackendLosses].Lookup(bpf.BackendLossKey{Backend: bpf.AddressFrom(backend), Reason: reason}, &loss)
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		must(t, err)
	}
	return loss
}

// loses checks that a run loses packets to a backend, and that their route is asked for by an address.
func (w *world) loses(t testing.TB, backend netip.Addr, reason uint32, packets uint64, asked netip.Addr, run func()) {
	t.Helper()
	before := w.loss(t, backend, reason)
	run()
	loss := w.loss(t, backend, reason)
	if got := loss.Packets - before.Packets; got != packets {
		t.Errorf("%d packets to %s are counted as lost, want %d", got, backend, packets)
	}
	if packets > 0 && loss.Asked != bpf.AddressFrom(asked) {
		t.Errorf("the route of packets to %s was looked up for %v, want %s", backend, loss.Asked.Bytes, asked)
	}
	if eth2 := w.index["eth2"]; reason == bpf.LostWithoutAddress && loss.Device != eth2 {
		t.Errorf("packets to %s leave by device %d, want %d, which has no address", backend, loss.Device, eth2)
	}
}
