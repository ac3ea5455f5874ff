// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// devices lists the devices in status: "eth0 tc, wan0 xdp".
func (w *world) devices() string {
	w.t.Helper()
	var all []string
	for _, d := range w.status().Edge.Devices {
		all = append(all, d.Name+" "+d.Mode)
	}
	return strings.Join(all, ", ")
}

// wantExit checks status's exit code, and that a line of its text contains these words.
func (w *world) wantExit(code int, words ...string) {
	w.t.Helper()
	text, err := w.agent.CLI("status", "-v")
	got, exit := 0, (*exec.ExitError)(nil)
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	}
	if got != code {
		w.t.Errorf("status exits with %d, want %d:\n%s", got, code, text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			w.t.Errorf("status does not say %q:\n%s", word, text)
		}
	}
}

// A veth is served by tc unless XDP is asked for, and status says why.
func TestAutoAtAVeth(t *testing.T) {
	w := startWorld(t)
	w.wantMode("tc")
	w.wantExit(0, "eth0  tc  clients  a veth may drop what XDP sends")
}

// Another XDP program, alone, keeps its device. tc serves there, and status names the program and the device.
func TestAnotherXDPProgram(t *testing.T) {
	w := newWorld(t, "--edge-mode=xdp")
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return(),
	}})
	w.must(err)
	defer other.Close()
	info, err := other.Info()
	w.must(err)
	id, _ := info.ID()
	w.must(w.agent.Host.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(device, other.FD(), nl.XDP_FLAGS_DRV_MODE)
	}))
	w.must(w.agent.Start())
	w.wantMode("tc")
	w.wantExit(3, "device eth0 is served by tc and not by what --edge-mode=xdp asks for", fmt.Sprintf("(other, program %d)", id), "load it with xdp-loader", "--edge-mode=tc")
	w.apply("web", objects(w.public("b1"))...)
	w.wantServed("tcp", addresses(w.Host("node-a"), nodePort)[0], "b1")
}

// Devices named by --devices have a condition until they exist, are served when they do, and are left when they
// are removed or renamed.
func TestDevicesComeAndGo(t *testing.T) {
	w := startWorld(t, "--devices=wan*")
	w.wantExit(3, "--devices wan*: no such device")
	wan := netlink.NewLinkAttrs()
	wan.Name = "wan0"
	w.must(w.agent.Host.Do(func() error { return netlink.LinkAdd(&netlink.Veth{LinkAttrs: wan, PeerName: "peer0"}) }))
	w.eventually("wan0 is served", func() bool { return w.devices() == "wan0 tc" })
	w.wantExit(0)
	rename := func(from, to string) {
		w.must(w.agent.Host.Do(func() error {
			device, err := netlink.LinkByName(from)
			if err != nil {
				return err
			}
			return netlink.LinkSetName(device, to)
		}))
	}
	rename("wan0", "wan1")
	w.eventually("wan1 is served", func() bool { return w.devices() == "wan1 tc" })
	rename("wan1", "lan1")
	w.eventually("nothing is served", func() bool { return w.devices() == "" && len(w.attached()) == 0 })
	rename("lan1", "wan2")
	w.eventually("wan2 is served", func() bool { return w.devices() == "wan2 tc" && len(w.attached()) == 2 })
	w.must(w.agent.Host.Do(func() error { return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan2"}}) }))
	w.eventually("nothing is served or left", func() bool { return w.devices() == "" && len(w.attached()) == 0 })
}

// Invalid ports are refused before anything is changed.
func TestSNATPortsOfTheHostsOwn(t *testing.T) {
	w := newWorld(t, "--snat-ports=1024-2000,40000-50000")
	w.must(w.agent.StartOnly())
	err := w.agent.Wait()
	if err == nil || !strings.Contains(err.Error(), "--snat-ports: 40000-50000 overlaps 32768-60999") {
		t.Errorf("the agent ended with the error %v", err)
	}
}
