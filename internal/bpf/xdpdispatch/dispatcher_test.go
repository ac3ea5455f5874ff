// SPDX-License-Identifier: Apache-2.0

package xdpdispatch

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"beeline.io/beeline/test/lab"
)

// The first thread is reserved for TestMain: what a test does to a thread that it has locked would stay
// there, visible in /proc/self. Only other threads end with their goroutine.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// world is a node with a client that has loaded nothing yet.
type world struct {
	t      *testing.T
	node   *lab.Host
	client Client
	device int // eth0
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, node: lab.New(t).Nodes()[0]}
	t.Setenv("LIBXDP_BPFFS", w.node.BPFFS)
	w.client = Client{Name: "client", Pins: filepath.Join(w.node.BPFFS, "programs"), Program: func() *ebpf.Program { return nil }}
	must(t, os.Mkdir(w.client.Pins, 0o700))
	w.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			w.device = link.Attrs().Index
		}
		return err
	})
	return w
}

// do runs a function in the node's network namespace.
func (w *world) do(f func() error) {
	w.t.Helper()
	must(w.t, w.node.Do(f))
}

// anyProgram passes all packets.
func anyProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 2), asm.Return(), // XDP_PASS
	}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// must ends the test if a step fails that the test is not about.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dispatcherOf loads a dispatcher for a number of programs, without them.
func dispatcherOf(t *testing.T, programs int) (*ebpf.Program, uint32) {
	t.Helper()
	p, err := loadDispatcher(configFor(make([]member, programs)))
	must(t, err)
	t.Cleanup(func() { p.Close() })
	id, err := programID(p)
	must(t, err)
	return p, id
}

// pinPlaces pins any program in the places of a dispatcher.
func pinPlaces(t *testing.T, device int, id uint32, places int) {
	t.Helper()
	pins := dispatcherPins(device, id)
	must(t, os.MkdirAll(pins, 0o700))
	program := anyProgram(t)
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
			w := newWorld(t)
			p, id := dispatcherOf(t, c.programs)
			if c.pinned {
				pinPlaces(t, w.device, id, c.programs)
			}
			w.do(func() error { return setXDP(w.device, p, nil, c.mode) })
			w.do(func() error {
				refused := (*OtherXDPError)(nil)
				_, err := w.client.Join(w.device, nl.XDP_ATTACHED_DRV)
				if !errors.As(err, &refused) || refused.ProgramID != id || !strings.Contains(err.Error(), c.want) {
					t.Errorf("refused with %v, want the program %d and %q", err, id, c.want)
				}
				if xdp := Attached(w.device); xdp == nil || xdp.ProgId != id {
					t.Errorf("the device has %+v, want program %d still", xdp, id)
				}
				return nil
			})
		})
	}
}

// A dispatcher is replaced only if it is the one that was read.
func TestDispatcherOfSomebodyElse(t *testing.T) {
	w := newWorld(t)
	mine, _ := dispatcherOf(t, 1)
	theirs, id := dispatcherOf(t, 1)
	w.do(func() error {
		must(t, setXDP(w.device, theirs, nil, nl.XDP_FLAGS_DRV_MODE))
		for _, old := range []*dispatcher{nil, {program: mine}} {
			if err := setXDP(w.device, mine, old, nl.XDP_FLAGS_DRV_MODE); err == nil || !changedMeanwhile(err) {
				t.Errorf("replaced what it did not know: %v", err)
			}
		}
		if xdp := Attached(w.device); xdp == nil || xdp.ProgId != id {
			t.Errorf("the device has %+v, want program %d still", xdp, id)
		}
		return setXDP(w.device, mine, &dispatcher{program: theirs}, nl.XDP_FLAGS_DRV_MODE)
	})
}
