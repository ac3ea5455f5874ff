// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// With LateXDP the XDP program is loaded when a device needs it, or when it replaces that of an earlier agent, here
// one with another --max-flows. So are, in any case, the programs for devices without MAC addresses.
func TestLatePrograms(t *testing.T) {
	w := newEdgeWorld(t)
	w.edge.LateXDP = true
	d := w.open()
	if d.Program(EdgeXDPProgBeelineEdgeXdp) != nil {
		t.Error("it is loaded before any device needs it")
	}
	if d.Program(EdgeL3ProgBeelineL3Ingress) != nil {
		t.Error("the programs for tun are loaded before any device needs them")
	}
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0", Index: 100}, Mode: netlink.TUNTAP_MODE_TUN}
	w.do(func() error {
		if err := netlink.LinkAdd(tun); err != nil {
			return err
		}
		for _, f := range tun.Fds {
			f.Close()
		}
		link, err := netlink.LinkByName(tun.Name)
		if err != nil {
			return err
		}
		tun.Index = link.Attrs().Index
		return errors.Join(d.AttachEdgeTC(w.device), attachXDP(d, w.device, XDPNative), d.AttachEdgeTC(tun.Index))
	})
	hooks := fmt.Sprintf("%[1]d egress, %[1]d ingress, %[1]d xdp, %[2]d egress, %[2]d ingress", w.device, tun.Index)
	w.want(hooks)
	before := w.attached()
	d.Close()
	w.options.Limits.Flows = 20000
	d = w.open()
	w.do(d.Attach)
	w.want(hooks)
	for i, a := range w.attached() {
		if a.LinkID != before[i].LinkID || a.ProgramID == before[i].ProgramID {
			t.Errorf("%s was %+v and is %+v", a.Hook, before[i], a)
		}
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(a.ProgramID))
		must(t, err)
		info, err := program.Info()
		must(t, errors.Join(err, program.Close()))
		if name := a.Hook.declared().Program; (a.Device == w.device) != strings.HasPrefix(name, info.Name) {
			t.Errorf("%s of device %d has the program %s", a.Hook, a.Device, info.Name)
		}
	}
}
