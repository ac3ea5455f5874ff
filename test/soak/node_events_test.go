// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// pinFiles are the agent's pins.
func (w *world) pinFiles() (all []string, err error) {
	err = filepath.WalkDir(w.agent.BPFFS(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != w.foreign.pin && !strings.HasSuffix(path, ".debug") { // those are the kernel's
			all = append(all, path)
		}
		return err
	})
	return all, err
}

// unpin removes all of the agent's pins while it runs.
func (w *world) unpin() error {
	pins, err := w.removePins()
	if err != nil {
		return err
	}
	return w.awaitPins(pins)
}

func (w *world) removePins() ([]string, error) {
	pins, err := w.pinFiles()
	if err != nil {
		return nil, err
	}
	for _, pin := range pins {
		if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return pins, nil
}

// awaitPins waits until there are pins again.
func (w *world) awaitPins(want []string) error {
	w.eventually("the pins are restored", func() error {
		now, err := w.pinFiles()
		missing := slices.DeleteFunc(slices.Clone(want), func(pin string) bool { return slices.Contains(now, pin) })
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("without %v", missing)
		}
		return err
	})
	return nil
}

// unmount unmounts the file system with the pins while the agent runs.
func (w *world) unmount() error {
	pins, err := w.pinFiles()
	if err != nil {
		return err
	}
	if err := w.unmountPins(); err != nil {
		return err
	}
	if err := w.awaitPins(pins); err != nil {
		return err
	}
	return w.foreign.pinIt() // it was in the file system, too
}

// unmountPins unmounts the file system that has the agent's pins: the lab's, or one that the agent has mounted.
func (w *world) unmountPins() error {
	err := unix.Unmount(w.agent.BPFFS(), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Unmount(w.Host("node-a").BPFFS, unix.MNT_DETACH)
	}
	return os.NewSyscallError("umount", err)
}

// A port of a device: its addresses and routes.
type devicePort struct {
	host, name string
	addresses  []netlink.Addr
	routes     []netlink.Route
}

// read reads the addresses and routes, except those that the kernel makes.
func (p *devicePort) read(w *world) error {
	return w.Host(p.host).Do(func() error {
		device, err := netlink.LinkByName(p.name)
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(device, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		p.addresses = slices.DeleteFunc(all, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() })
		filter := &netlink.Route{LinkIndex: device.Attrs().Index, Table: unix.RT_TABLE_UNSPEC}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		p.routes = slices.DeleteFunc(routes, func(r netlink.Route) bool {
			return r.Protocol == unix.RTPROT_KERNEL || r.Table == unix.RT_TABLE_LOCAL
		})
		return err
	})
}

// write adds them to a new device of the name: routes to neighbours before those by neighbours.
func (p *devicePort) write(w *world) error {
	for _, a := range p.addresses {
		addr, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if err := w.Host(p.host).AddAddress(p.name, netip.PrefixFrom(addr.Unmap(), ones)); err != nil {
			return err
		}
	}
	slices.SortStableFunc(p.routes, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) })
	return w.Host(p.host).Do(func() error {
		device, err := netlink.LinkByName(p.name)
		if err != nil {
			return err
		}
		for _, r := range p.routes {
			r.LinkIndex = device.Attrs().Index
			if err := netlink.RouteReplace(&r); err != nil {
				return fmt.Errorf("host %s: route %v: %w", p.host, r, err)
			}
		}
		return nil
	})
}

// remakeDevice removes eth1, with its addresses and routes, and makes it again. Connections through it wait.
func (w *world) remakeDevice() error {
	near, far := &devicePort{host: "node-a", name: "eth1"}, &devicePort{host: "fabric", name: "node-a-2"}
	if err := errors.Join(near.read(w), far.read(w)); err != nil {
		return err
	}
	if err := w.Host("node-a").Do(func() error { return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}}) }); err != nil {
		return err
	}
	time.Sleep(length(time.Second, 5*time.Second))
	ns, err := os.Open(w.Host("fabric").NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = w.Host("node-a").Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "node-a-2", PeerNamespace: netlink.NsFd(ns.Fd())})
	})
	if err == nil {
		err = w.foreign.attachXDP() // before the agent serves the device, and has its own program there
	}
	if err != nil {
		return err
	}
	for _, p := range []*devicePort{near, far} {
		err := w.Host(p.host).Do(func() error {
			device, err := netlink.LinkByName(p.name)
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(device)
		})
		if err != nil {
			return err
		}
	}
	if err := errors.Join(near.write(w), far.write(w)); err != nil {
		return err
	}
	return w.agent.WaitFor("serving eth1", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Edge.Devices, func(d api.EdgeDevice) bool { return d.Name == "eth1" && d.Mode == "tc" })
	})
}

// maxFrontends leaves no room for the Service of fullTables.
const maxFrontends = 256

// fillTime bounds how long fullTables waits for the clients and hostile packets.
const fillTime = 20 * time.Second

// fullTables has a Service that does not fit into the tables of frontends come and go. The clients, and hostile packets
// beside it, fill the conntrack and affinity tables: on a slow machine that takes longer.
func (w *world) fullTables() error {
	if err := w.objects.put("large", w.large()...); err != nil {
		return err
	}
	if err := w.agent.WaitFor("with a Service that does not fit", func(s *api.Status) bool { return s.Sync.LeftOut == 1 }); err != nil {
		return err
	}
	time.Sleep(length(time.Second, 10*time.Second))
	for end := time.Now().Add(fillTime); time.Now().Before(end); time.Sleep(time.Second) { // sumFill checks the result
		s, err := w.agent.Status()
		if err != nil {
			return err
		}
		if w.fill.note(s); taken(w.fill["conntrack"]) >= full {
			break
		}
	}
	if err := w.objects.remove("large"); err != nil {
		return err
	}
	return w.agent.WaitFor("without it", func(s *api.Status) bool { return s.Sync.LeftOut == 0 })
}

// large is a Service with more ports than maxFrontends.
func (w *world) large() []runtime.Object {
	s, endpointSlices := node.Service("large", 9), node.Slices("large", w.Host("b1"))
	s.CreationTimestamp = metav1.Now()
	var all []node.Port
	for i := range int32(maxFrontends) {
		all = append(all, node.Port{Name: fmt.Sprintf("p%d", i), Protocol: corev1.ProtocolTCP, Port: 1000 + i, Target: lab.PortTCP})
	}
	node.SetPorts(s, nil, all...)
	node.SetPorts(s.DeepCopy(), endpointSlices, all[:1]...)
	return []runtime.Object{s, endpointSlices[0], endpointSlices[1]}
}

// reboot removes all that Beeline has in the kernel, as a reboot does, and starts an agent on the clean node.
func (w *world) reboot() error {
	if err := w.agent.Kill(); err != nil {
		return err
	}
	if _, err := w.removePins(); err != nil {
		return err
	}
	if err := w.unmountPins(); err != nil {
		return err
	}
	at := w.Host("node-a").BPFFS
	unix.Unmount(at, unix.MNT_DETACH) // if the pins had a file system of their own
	if err := unix.Mount("bpf", at, "bpf", 0, "mode=0700"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := w.foreign.pinIt(); err != nil {
		return err
	}
	w.agent.Program = program
	return w.agent.Start()
}
