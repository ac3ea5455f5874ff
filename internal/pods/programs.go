// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

func (f *finder) isForeign(id uint32) bool { return f.tc.IsForeign(id) }

// nameOf names a program for the operator.
func (f *finder) nameOf(id uint32) string { return f.tc.NameOf(id) }

// hooks finds programs in the links of tcx (Linux 6.6) that are not Beeline's. What they do is not known: a program
// before Beeline's that ends the chain keeps packets from it, and one after it does not see those that it redirects.
func (f *finder) hooks(s surroundings) (all []filter, err error) {
	devices := slices.Collect(maps.Keys(s.behind))
	for _, l := range s.uplinks {
		devices = append(devices, l.index)
	}
	for _, device := range devices {
		found, err := f.hooksAt(s, device)
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // before Linux 6.6
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("query the programs at %s: %w", s.network.link(device).name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (f *finder) hooksAt(s surroundings, device int) (all []filter, err error) {
	for _, hook := range []struct {
		direction string
		at        ebpf.AttachType
	}{{"ingress", ebpf.AttachTCXIngress}, {"egress", ebpf.AttachTCXEgress}} {
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
				all = append(all, s.filtersAt(device, fmt.Sprintf("BPF program %s (tcx %s)", f.nameOf(id), hook.direction))...)
			}
		}
	}
	return all, nil
}
