// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
)

func (f *finder) isForeign(id uint32) bool { return f.tc.IsForeign(id) }

// nameOf names a program for the operator.
func (f *finder) nameOf(id uint32) string { return f.tc.NameOf(id) }

// A hook is a place for programs at a device.
type hook struct {
	name      string
	direction string // of tcx
	at        ebpf.AttachType
}

var tcxHooks = []hook{{"tcx ingress", "ingress", ebpf.AttachTCXIngress}, {"tcx egress", "egress", ebpf.AttachTCXEgress}}

// peerHook is where what the pod sends meets programs; the other one is on the way into the pod.
var (
	peerHook    = hook{name: "netkit peer", at: ebpf.AttachNetkitPeer}
	netkitHooks = []hook{{name: "netkit primary", at: ebpf.AttachNetkitPrimary}, peerHook}
)

// hooks finds programs in the links of tcx (Linux 6.6) and netkit (Linux 6.7) that are not Beeline's. What they do is
// not known: a program before Beeline's that ends the chain keeps packets from it, and one after it does not see those
// that it redirects.
func (f *finder) hooks(s surroundings) (all []filter, err error) {
	devices := slices.Collect(maps.Keys(s.behind))
	for _, l := range s.uplinks {
		devices = append(devices, l.Index)
	}
	for _, device := range devices {
		hooks := tcxHooks
		if l := s.network.device(device); l.Kind == "netkit" && l.Netkit.Primary {
			hooks = slices.Concat(tcxHooks, netkitHooks)
		}
		found, err := f.hooksAt(s, device, hooks)
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // before Linux 6.6
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("query the programs at %s: %w", s.network.device(device).Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// policies finds netkit devices that drop packets into the pod, or from it, while no program is there that decides:
// the shortcut is none.
func (f *finder) policies(s surroundings) (all []filter, err error) {
	for device := range s.behind {
		l := s.network.device(device)
		if l.Netkit.Blackhole {
			all = append(all, s.filtersAt(device, "netkit policy blackhole")...)
		}
		if l.Netkit.PeerBlackhole {
			all = append(all, s.filtersAt(device, "netkit peer policy blackhole")...)
		}
	}
	return all, nil
}

// peers finds native XDP programs at the pods' own ends of veth pairs: bpf_redirect_peer delivers past them.
func (f *finder) peers(s surroundings) (all []filter, err error) {
	for device := range s.behind {
		l := s.network.device(device)
		if l.Kind != "veth" || !l.PeerElsewhere {
			continue
		}
		id, err := node.PeerXDP(l.PeerNamespace, l.Parent)
		if err != nil {
			return nil, err
		}
		if id != 0 {
			all = append(all, filter{device: device, what: fmt.Sprintf("BPF program %s (XDP at the pod's own device)", f.nameOf(id))})
		}
	}
	return all, nil
}

func (f *finder) hooksAt(s surroundings, device int, hooks []hook) (all []filter, err error) {
	for _, hook := range hooks {
		if s.passed(device, hook.direction) {
			continue
		}
		list, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: device, Attach: hook.at})
		if errors.Is(err, unix.ENODEV) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, p := range list.Programs {
			if id := uint32(p.ID); f.isForeign(id) {
				found := s.filtersAt(device, fmt.Sprintf("BPF program %s (%s)", f.nameOf(id), hook.name))
				for i := range found {
					found[i].atPeer = hook == peerHook
				}
				all = append(all, found...)
			}
		}
	}
	return all, nil
}
