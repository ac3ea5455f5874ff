// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
)

// attach attaches the edge to a device as wanted, unless it is attached like that already.
func (e *Edge) attach(d Device) {
	old := e.devices[d.Index]
	if old != nil && old.failed == nil && !old.entry.retry && old.Kind == d.Kind && old.XDP == d.XDP && old.TakesTags == d.TakesTags && old.onlyPods() == d.onlyPods() && old.Draining == d.Draining {
		old.Device = d
		return
	}
	a := &attached{Device: d}
	if old != nil {
		a.losses = old.losses
	} else {
		a.losses.before = e.lost(d.Name)
	}
	a.failed = e.enter(a)
	e.devices[d.Index] = a
	if a.failed != nil {
		if old == nil || old.failed == nil || old.failed.Error() != a.failed.Error() {
			condition.DeviceNotServed.Log(e.config.Log, "a device is not served", "device", d.Name, "for", d.role(), "error", a.failed)
		}
		return
	}
	if old != nil && old.failed == nil && old.entry == a.entry && old.Name == a.Name {
		return // retried without success
	}
	args := []any{"device", d.Name, "for", d.role(), "mode", a.entry.mode, "why", a.entry.why}
	if a.entry.refused {
		condition.DeviceModeRefused.Log(e.config.Log, "serving a device", args...)
		return
	}
	e.config.Log.Info("serving a device", args...)
}

// An entry is how the edge gets a device's packets.
type entry struct {
	mode string // xdp, generic xdp or tc
	why  string
	// refused: this is not what was requested.
	refused bool
	// retry: the obstacle, such as another program, may disappear.
	retry bool
}

// errLinkType: the programs expect the IP header first, or after an Ethernet header.
var errLinkType = errors.New("its packets begin neither with an Ethernet header nor with an IP header, as the edge needs: use WireGuard, IPIP, VXLAN or Geneve for the overlay")

// enter attaches the edge to a device. It attaches tc first: XDP passes to tc what it cannot forward
// itself.
func (e *Edge) enter(a *attached) error {
	if !a.hasKnownHeader() {
		return errLinkType
	}
	if err := e.datapath.AttachEdgeTC(a.Index); err != nil {
		return err
	}
	mode, why, try := wantedEntry(e.config, a.Device)
	if !try {
		refused := a.TakesTags && e.config.Mode == XDP && !slices.Contains(softwareKinds, a.Kind)
		a.entry = entry{mode: "tc", why: why, refused: refused}
		return e.datapath.DetachEdge(a.Index, bpf.EdgeXDP)
	}
	chain, err := e.datapath.AttachEdgeXDP(a.Index, mode)
	if err == nil {
		a.entry, a.chain = entry{mode: xdpName(mode), why: why + chainText(chain)}, chain
		return nil
	}
	if errors.As(err, new(*bpf.ExclusiveXDPError)) {
		a.entry = entry{mode: xdpName(mode), why: err.Error(), refused: true}
		return nil
	}
	a.entry = entry{mode: "tc", why: refusal(err), refused: e.config.Mode == XDP, retry: !errors.Is(err, ebpf.ErrNotSupported)}
	return nil
}

// chainText names the programs that share a device with the edge.
func chainText(chain []xdpdispatch.ChainProgram) string {
	if len(chain) == 0 {
		return ""
	}
	var names []string
	for _, p := range chain {
		name := fmt.Sprintf("%s (program %d, priority %d)", p.Name, p.ID, p.Priority)
		if p.Own {
			name = fmt.Sprintf("Beeline (priority %d)", p.Priority)
		}
		names = append(names, name)
	}
	return "; in a dispatcher: " + strings.Join(names, ", then ")
}

// wantedEntry returns whether to try XDP on a device, in which mode, and why.
func wantedEntry(c Config, d Device) (mode bpf.XDPMode, why string, try bool) {
	switch {
	case c.Mode == TC:
		return "", "--edge-mode=tc", false
	case d.Draining:
		return "", "flows of clients or pods behind it continue; it is released when they end", false
	case !d.Clients && !d.Backends:
		return "", "pods behind it send to the node's own addresses without the socket shortcut", false
	case d.L3:
		return "", "its packets have no MAC addresses, which XDP needs", false
	case slices.Contains(softwareKinds, d.Kind):
		return "", "a " + d.Kind + " device gets its packets from other devices: XDP gains nothing here", false
	case d.TakesTags:
		return "", "there are VLAN devices above, and the driver strips the tags before XDP sees them: `ethtool -K " + d.Name + " rxvlan off` allows XDP", false
	case c.Generic:
		return bpf.XDPGeneric, "--edge-xdp-generic", true
	case c.Mode == XDP:
		return bpf.XDPNative, "--edge-mode=xdp", true
	case d.Kind == "veth":
		// It drops what XDP sends unless its peer has GRO or XDP, and checksums are not complete.
		return "", "a veth may drop what XDP sends; --edge-mode=xdp uses XDP anyway", false
	}
	return bpf.XDPNative, "its driver supports XDP", true
}

// MayEnterXDP reports whether XDP would be tried on some device of this node if that device is served.
func MayEnterXDP(c Config) bool {
	devices, err := readDevices(new(node.Network), nil)
	return err != nil || slices.ContainsFunc(devices, func(d Device) bool {
		d.Clients = true
		_, _, try := wantedEntry(c, d)
		return try && !d.Loopback
	})
}

func xdpName(mode bpf.XDPMode) string {
	if mode == bpf.XDPGeneric {
		return "generic xdp"
	}
	return "xdp"
}

func refusal(err error) string {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return "no native XDP: " + err.Error()
	}
	return "no XDP: " + err.Error()
}

// Detached reports whether another program has detached the edge from a device.
func (e *Edge) Detached() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	all, err := e.datapath.EdgeAttachments()
	return err == nil && len(e.missingHooks(all)) > 0
}

// findDetached forgets the devices with a detached program, so that they are attached again.
func (e *Edge) findDetached() (lost []string) {
	all, err := e.datapath.EdgeAttachments()
	if err != nil {
		e.report(condition.DevicesUnreadable.New("attachments cannot be read: %v", err))
		return nil
	}
	for index, hooks := range e.missingHooks(all) {
		for _, hook := range hooks {
			lost = append(lost, fmt.Sprintf("%s of device %s", hook, e.devices[index].Name))
		}
		delete(e.devices, index)
	}
	return lost
}

// missingHooks returns the hooks of each device that should be attached, and are not.
func (e *Edge) missingHooks(all []bpf.EdgeAttachment) map[int][]bpf.EdgeHook {
	lost := map[int][]bpf.EdgeHook{}
	for index, a := range e.devices {
		if a.failed != nil {
			continue
		}
		want := []bpf.EdgeHook{bpf.EdgeEgress, bpf.EdgeIngress}
		if a.entry.mode != "tc" {
			want = append(want, bpf.EdgeXDP)
		}
		for _, hook := range want {
			if !slices.ContainsFunc(all, func(x bpf.EdgeAttachment) bool {
				return x.Device == index && x.Hook == hook && !x.Detached
			}) {
				lost[index] = append(lost[index], hook)
			}
		}
	}
	return lost
}

// detachOthers detaches the edge from all other devices, and removes what is left of deleted devices.
func (e *Edge) detachOthers(keep map[int]bool) {
	all, err := e.datapath.EdgeAttachments()
	if err != nil {
		e.report(condition.DevicesUnreadable.New("attachments cannot be read: %v", err))
		return
	}
	gone := map[int]string{}
	for _, a := range all {
		if !keep[a.Device] {
			gone[a.Device] = "" // a device of an earlier agent, or a deleted device
		}
	}
	for index, d := range e.devices {
		if !keep[index] {
			if _, attached := gone[index]; attached {
				gone[index] = d.Name
			}
			delete(e.devices, index)
		}
	}
	for index, name := range gone {
		if err := e.datapath.DetachEdge(index); err != nil {
			e.report(condition.DetachFailed.New("device %d is not served any more, and its programs cannot be detached: %v", index, err).At(deviceName(index)))
			continue
		}
		e.config.Log.Info("a device is not served any more", "device", name, "index", index)
	}
}
