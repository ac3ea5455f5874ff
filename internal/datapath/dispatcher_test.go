// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"
)

// dispatcherOf loads a dispatcher for a number of programs, without them.
func dispatcherOf(t *testing.T, programs int) (*ebpf.Program, uint32) {
	t.Helper()
	p, err := loadDispatcher(configFor(make([]member, programs)))
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p, idOf(t, p)
}

// pinPlaces pins any program in the places of a dispatcher.
func pinPlaces(t *testing.T, device int, id uint32, places int) {
	t.Helper()
	pins := dispatcherPins(device, id)
	must(t, os.MkdirAll(pins, 0o700))
	program := anyProgram(t, ebpf.XDP)
	for place := range places {
		must(t, pinProgram(program, filepath.Join(pins, placeName(place)+"-prog")))
	}
}

// Dispatchers that cannot be joined are refused with the reason, and stay unchanged.
func TestDispatcherThatIsRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		programs int
		pinned   bool
		mode     uint32
		want     string
	}{
		{"pins elsewhere", 1, false, nl.XDP_FLAGS_DRV_MODE, "LIBXDP_BPFFS"},
		{"full", dispatcherPlaces, true, nl.XDP_FLAGS_DRV_MODE, "unload one"},
		{"generic", 1, true, nl.XDP_FLAGS_SKB_MODE, "in the other mode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newEdgeWorld(t)
			t.Setenv("LIBXDP_BPFFS", w.node.BPFFS)
			d := mustOpen(t, w.options)
			p, id := dispatcherOf(t, c.programs)
			if c.pinned {
				pinPlaces(t, w.device, id, c.programs)
			}
			w.do(func() error { return setXDP(w.device, p, nil, c.mode) })
			w.do(func() error {
				refused := (*OtherXDPError)(nil)
				_, err := d.joinEdge(w.device, nl.XDP_ATTACHED_DRV)
				if !errors.As(err, &refused) || refused.ProgramID != id || !strings.Contains(err.Error(), c.want) {
					t.Errorf("refused with %v, want the program %d and %q", err, id, c.want)
				}
				if xdp := xdpOf(w.device); xdp == nil || xdp.ProgId != id {
					t.Errorf("the device has %+v, want program %d still", xdp, id)
				}
				return nil
			})
		})
	}
}

// If the kernel does not support dispatchers, or one cannot be made, the edge is attached by itself: by its
// existing link, with the current agent's program.
func TestDispatcherThatCannotBe(t *testing.T) {
	for name, had := range map[string]bool{"served before": true, "fresh": false} {
		t.Run(name, func(t *testing.T) {
			w := newEdgeWorld(t)
			var before EdgeAttachment
			if had {
				d := mustOpen(t, w.options)
				w.do(func() error { return attachXDP(d, w.device, XDPNative) })
				before = w.attached()[0]
				d.Close()
			}
			w.options.Edge.Dispatcher = true
			d := mustOpen(t, w.options)
			d.replacement = func() error { return ebpf.ErrNotSupported }
			w.do(func() error {
				alone := (*ExclusiveXDPError)(nil)
				if err := attachXDP(d, w.device, XDPNative); !errors.As(err, &alone) || !strings.Contains(err.Error(), "remove --edge-xdp-dispatcher") {
					t.Errorf("attached with %v, want %T and the flag to remove", err, alone)
				}
				return nil
			})
			now := w.attached()
			if len(now) != 1 || now[0].Hook != EdgeXDP || now[0].Detached || had && now[0].LinkID != before.LinkID {
				t.Fatalf("attached: %+v, want the link %d", now, before.LinkID)
			}
			if want := idOf(t, d.programs[EdgeXDPProgBeelineEdgeXdp]); now[0].ProgramID != want {
				t.Errorf("program %d serves, want the present one, %d", now[0].ProgramID, want)
			}
		})
	}
}

// The next start, or cleanup, removes what an agent left that was killed while it changed a dispatcher;
// what is attached stays.
func TestInterruptedChange(t *testing.T) {
	for _, attached := range []bool{false, true} {
		w := newEdgeWorld(t)
		t.Setenv("LIBXDP_BPFFS", w.node.BPFFS)
		d := mustOpen(t, w.options)
		p, id := dispatcherOf(t, 1)
		interrupted := func() {
			t.Helper()
			must(t, pinProgram(p, changePath(w.options.BPFFS, w.device, id)))
			pinPlaces(t, w.device, id, 1)
		}
		want := func(when string) {
			t.Helper()
			wantGone(t, changePath(w.options.BPFFS, w.device, id))
			if _, err := os.Stat(dispatcherPins(w.device, id)); (err == nil) != attached {
				t.Errorf("after %s: attached %v, and its pins: %v", when, attached, err)
			}
		}
		if attached {
			w.do(func() error { return setXDP(w.device, p, nil, nl.XDP_FLAGS_DRV_MODE) })
		}
		interrupted()
		w.do(d.Attach)
		want("the next start")
		d.Close()
		interrupted()
		w.do(func() error { return Cleanup(w.options.BPFFS) })
		want("cleanup")
	}
}

// A dispatcher is replaced only if it is the one that was read.
func TestDispatcherOfSomebodyElse(t *testing.T) {
	w := newEdgeWorld(t)
	mine, _ := dispatcherOf(t, 1)
	theirs, id := dispatcherOf(t, 1)
	w.do(func() error {
		must(t, setXDP(w.device, theirs, nil, nl.XDP_FLAGS_DRV_MODE))
		for _, old := range []*dispatcher{nil, {program: mine}} {
			if err := setXDP(w.device, mine, old, nl.XDP_FLAGS_DRV_MODE); err == nil || !changedMeanwhile(err) {
				t.Errorf("replaced what it did not know: %v", err)
			}
		}
		if xdp := xdpOf(w.device); xdp == nil || xdp.ProgId != id {
			t.Errorf("the device has %+v, want program %d still", xdp, id)
		}
		return setXDP(w.device, mine, &dispatcher{program: theirs}, nl.XDP_FLAGS_DRV_MODE)
	})
}
