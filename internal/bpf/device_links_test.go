// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// deviceWorld is a node with a datapath and a device.
type deviceWorld struct {
	t       *testing.T
	node    *lab.Host
	options Options
	device  int // eth0
}

func newDeviceWorld(t *testing.T) *deviceWorld {
	t.Helper()
	w := &deviceWorld{t: t, node: lab.New(t).Nodes()[0]}
	w.options = Options{BPFFS: w.node.BPFFS + "/beeline", CgroupRoot: w.node.CgroupRoot}
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
func (w *deviceWorld) do(f func() error) {
	w.t.Helper()
	must(w.t, w.node.Do(f))
}

// passing returns a component whose programs pass every packet at these hooks.
func passing(hooks ...DeviceHook) *Component {
	types := map[ebpf.AttachType]ebpf.ProgramType{ebpf.AttachXDP: ebpf.XDP, ebpf.AttachTCXIngress: ebpf.SchedCLS, ebpf.AttachTCXEgress: ebpf.SchedCLS}
	verdicts := map[ebpf.ProgramType]int32{ebpf.XDP: 2 /* XDP_PASS */, ebpf.SchedCLS: -1 /* TCX_NEXT */}
	spec := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{}}
	for _, h := range hooks {
		kind := types[h.Attach]
		spec.Programs[h.Program] = &ebpf.ProgramSpec{
			Name: h.Program, Type: kind, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdicts[kind]), asm.Return()},
		}
	}
	return &Component{
		Name: "passing", DeviceHooks: hooks,
		Objects: func(*Datapath) ([]*ebpf.CollectionSpec, error) { return []*ebpf.CollectionSpec{spec.Copy()}, nil },
	}
}

// links lists the links of a component: "2 egress, 2 ingress detached".
func (w *deviceWorld) links(c *Component) (all []Link, text string) {
	w.t.Helper()
	all, err := c.deviceLinks(w.options.BPFFS)
	must(w.t, err)
	var names []string
	for _, l := range all {
		name := fmt.Sprint(l.Device(), " ", l.Hook)
		if l.Detached {
			name += " detached"
		}
		names = append(names, name)
	}
	return all, strings.Join(names, ", ")
}

// wantLinks compares the links of a component.
func (w *deviceWorld) wantLinks(when string, c *Component, want string) (all []Link) {
	w.t.Helper()
	all, got := w.links(c)
	if got != want {
		w.t.Errorf("%s: attached %q, want %q", when, got, want)
	}
	return all
}

// hasTCX reports whether the kernel has links to tc (Linux 6.6).
func (w *deviceWorld) hasTCX() (has bool) {
	w.do(func() error {
		_, err := link.QueryPrograms(link.QueryOptions{Target: w.device, Attach: ebpf.AttachTCXIngress})
		has = !errors.Is(err, unix.EINVAL) && !errors.Is(err, ebpf.ErrNotSupported)
		return nil
	})
	return has
}

// TestDeviceHooks: a component's programs are attached to the devices that it names, in the order of its
// hooks. The next agent replaces them in their links before it knows the devices. Repair attaches what was
// detached. A device that is not named any more has none, and neither does a disabled component.
func TestDeviceHooks(t *testing.T) {
	w := newDeviceWorld(t)
	hooks := []DeviceHook{{Name: "xdp", Program: "pass_xdp", Attach: ebpf.AttachXDP}}
	if w.hasTCX() {
		hooks = []DeviceHook{{Name: "egress", Program: "pass_egress", Attach: ebpf.AttachTCXEgress}, {Name: "ingress", Program: "pass_ingress", Attach: ebpf.AttachTCXIngress}, hooks[0]}
	}
	c := passing(hooks...)
	w.options.Components = append([]*Component{Socket()}, c)
	var names []string
	for _, h := range hooks {
		names = append(names, fmt.Sprint(w.device, " ", h.Name))
	}
	all := strings.Join(names, ", ")

	d := mustOpen(t, w.options)
	w.do(func() error { return d.SetDevices("passing", w.device) })
	before := w.wantLinks("set", c, all)
	w.do(func() error { return d.SetDevices("passing", w.device) })
	if again := w.wantLinks("set twice", c, all); !slices.EqualFunc(before, again, func(a, b Link) bool { return a.ID == b.ID }) {
		t.Errorf("set twice: the links were %v and are %v", before, again)
	}
	d.Close()

	d = mustOpen(t, w.options)
	w.do(d.Attach)
	for i, l := range w.wantLinks("the next agent", c, all) {
		if l.ID != before[i].ID || l.Program == before[i].Program {
			t.Errorf("the next agent: %s was %+v and is %+v", l.Hook, before[i], l)
		}
	}
	w.do(func() error { return d.SetDevices("passing", w.device) })
	if devices, err := d.Devices("passing"); err != nil || !slices.Equal(devices, []int{w.device}) {
		t.Errorf("devices %v, %v", devices, err)
	}
	must(t, os.RemoveAll(filepath.Join(w.options.BPFFS, "links")))
	w.do(func() error { return d.SetDevices("passing", w.device) })
	for i, l := range w.wantLinks("without pins", c, all) {
		if l.ID != before[i].ID {
			t.Errorf("without pins: %s is another link", l.Hook)
		}
	}
	if repaired, err := d.Repair(); err != nil || !slices.Contains(repaired, "directory "+filepath.Join(w.options.BPFFS, "links")) {
		t.Errorf("without pins: repaired %q, %v", repaired, err)
	}
	for _, h := range hooks {
		l, err := link.LoadPinnedLink(ownedLinkPath(w.options.BPFFS, c.Name, uint64(w.device), h.Name), nil)
		must(t, err)
		must(t, takeDown(l))
		if devices, err := d.Devices("passing"); err != nil || len(devices) > 0 {
			t.Errorf("%s is gone, and devices are %v, %v", h.Name, devices, err)
		}
		w.do(func() error {
			var repaired []string
			err := errors.New("not tried")
			for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
				repaired, err = d.Repair() // the kernel takes a moment to release a link of XDP without a pin
			}
			if want := fmt.Sprintf("%s of component passing at device %d", h.Name, w.device); !slices.Equal(repaired, []string{want}) {
				t.Errorf("repaired %q, want %q", repaired, want)
			}
			return err
		})
		w.wantLinks("repaired", c, all)
	}
	w.do(func() error { return d.SetDevices("passing") })
	w.wantLinks("no device is named", c, "")
	w.do(func() error { return d.SetDevices("passing", w.device) })
	d.Close()

	disabled := passing(hooks...)
	disabled.Objects = func(*Datapath) ([]*ebpf.CollectionSpec, error) { return nil, nil }
	w.options.Components = append([]*Component{Socket()}, disabled)
	d = mustOpen(t, w.options)
	w.do(d.Attach)
	w.wantLinks("disabled", c, "")
	if err := d.SetDevices("passing", w.device); err == nil || !strings.Contains(err.Error(), "component passing is not enabled") {
		t.Errorf("devices of a disabled component: %v", err)
	}
}

// TestFormerComponents: the programs of a component that has another name by now are detached when the next agent
// attaches, and by Cleanup.
func TestFormerComponents(t *testing.T) {
	for name, detach := range map[string]func(*deviceWorld){
		"attach": func(w *deviceWorld) { w.do(mustOpen(w.t, w.options).Attach) },
		"cleanup": func(w *deviceWorld) {
			w.do(func() error { return Cleanup(w.options.BPFFS, nil, w.options.Components...) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDeviceWorld(t)
			earlier := passing(DeviceHook{Name: "ingress", Program: "pass_ingress", Attach: ebpf.AttachTCXIngress}, DeviceHook{Name: "egress", Program: "pass_egress", Attach: ebpf.AttachTCXEgress})
			earlier.Name, earlier.FilterPriority = "former", 193
			w.options.Components = append([]*Component{Socket()}, earlier)
			d := mustOpen(t, w.options)
			w.do(func() error { return d.SetDevices("former", w.device) })
			if attached, text := w.links(earlier); len(attached) != len(earlier.DeviceHooks) && w.hasTCX() {
				t.Fatalf("before: attached %q", text)
			}
			d.Close()
			later := passing(earlier.DeviceHooks...)
			later.Former, later.FilterPriority = earlier.Name, earlier.FilterPriority
			w.options.Components = append([]*Component{Socket()}, later)
			detach(w)
			w.wantLinks(name, earlier, "")
			if n := w.clsacts(); n != 0 {
				t.Errorf("%d qdiscs are left", n)
			}
		})
	}
}

// TestDeviceHookAsFilter: a component's program at tc of a kernel without links there (before Linux 6.6) is a
// filter, which counts as attached and is detached like a link.
func TestDeviceHookAsFilter(t *testing.T) {
	w := newDeviceWorld(t)
	c := passing(DeviceHook{Name: "ingress", Program: "pass_ingress", Attach: ebpf.AttachTCXIngress})
	w.options.Components = append([]*Component{Socket()}, c)
	d := mustOpen(t, w.options)
	w.do(func() error {
		if w.hasTCX() {
			return c.AttachFilter(w.options.BPFFS, w.device, ebpf.AttachTCXIngress, d.Program("pass_ingress"))
		}
		return d.SetDevices("passing", w.device)
	})
	w.do(func() error {
		devices, err := d.Devices("passing")
		if !slices.Equal(devices, []int{w.device}) {
			t.Errorf("attached to %v, want %d", devices, w.device)
		}
		return errors.Join(err, d.SetDevices("passing"))
	})
	if n := w.clsacts(); n != 0 {
		t.Errorf("%d qdiscs are left", n)
	}
}
