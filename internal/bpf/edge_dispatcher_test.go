// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// If the kernel does not support dispatchers, or one cannot be made, the edge is attached by itself: by its
// existing link, with the current agent's program.
func TestDispatcherThatCannotBe(t *testing.T) {
	for name, had := range map[string]bool{"served before": true, "fresh": false} {
		t.Run(name, func(t *testing.T) {
			w := newEdgeWorld(t)
			var before EdgeAttachment
			if had {
				d := w.open()
				w.do(func() error { return attachXDP(d, w.device, XDPNative) })
				before = w.attached()[0]
				d.Close()
			}
			w.dispatcher = true
			d := w.open()
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
			if want := idOf(t, d.Program(EdgeXDPProgBeelineEdgeXdp)); now[0].ProgramID != want {
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
		d := w.open()
		p := anyProgram(t, ebpf.XDP)
		name := fmt.Sprintf("dispatch-%d-%d", w.device, idOf(t, p))
		change, places := filepath.Join(w.options.BPFFS, "programs", name), filepath.Join(w.node.BPFFS, "xdp", name)
		interrupted := func() {
			t.Helper()
			pinClone(t, p, change)
			must(t, os.MkdirAll(places, 0o700))
			pinClone(t, p, filepath.Join(places, "prog0-prog"))
		}
		want := func(when string) {
			t.Helper()
			wantGone(t, change)
			if _, err := os.Stat(places); (err == nil) != attached {
				t.Errorf("after %s: attached %v, and its pins: %v", when, attached, err)
			}
		}
		if attached {
			w.do(func() error {
				device, err := netlink.LinkByIndex(w.device)
				must(t, err)
				return netlink.LinkSetXdpFdWithFlags(device, p.FD(), nl.XDP_FLAGS_DRV_MODE)
			})
		}
		interrupted()
		w.do(d.Attach)
		want("the next start")
		d.Close()
		interrupted()
		w.do(func() error { return Cleanup(w.options.BPFFS, nil, w.options.Components...) })
		want("cleanup")
	}
}

// pinClone pins a program at another path, too.
func pinClone(t *testing.T, p *ebpf.Program, path string) {
	t.Helper()
	c, err := p.Clone()
	must(t, err)
	defer c.Close()
	must(t, os.RemoveAll(path))
	must(t, c.Pin(path))
}
