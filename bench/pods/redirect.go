// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types PodsRedirect pods_redirect.bpf.c

// A podsRedirect is the program of bench/pods/pods_redirect.bpf.c at the devices of a path between two pods: it only
// redirects. On one node it bounds what any program at these hooks can save; to another node the kernel looks up the
// next hop of each packet for it, which the shortcut remembers.
type podsRedirect struct {
	objects []*PodsRedirectObjects
	links   []link.Link
}

// A podEnd is a pod, the device that leads to it on its node, and the one that leads to other nodes.
type podEnd struct {
	pod, node      *lab.Host
	mac            [6]uint8
	device, uplink int
}

func podEndOf(l *lab.Lab, name string) (e podEnd, err error) {
	e.pod = l.Host(name)
	e.node = e.pod.Node
	inside, err := harness.DeviceOf(e.pod, "eth0")
	if err != nil {
		return e, fmt.Errorf("the device of %s: %w", name, err)
	}
	uplink, err := harness.DeviceOf(e.node, "eth0")
	if err != nil {
		return e, err
	}
	e.device, e.uplink = inside.ParentIndex, uplink.Index
	copy(e.mac[:], inside.HardwareAddr)
	return e, nil
}

// redirectBetween attaches the program to all devices between two pods. After an error, too, the result must be closed.
func redirectBetween(l *lab.Lab, names [2]string) (r *podsRedirect, err error) {
	r = &podsRedirect{}
	var ends [2]podEnd
	for i, name := range names {
		if ends[i], err = podEndOf(l, name); err != nil {
			return r, err
		}
	}
	for i, e := range ends {
		other := ends[1-i]
		if e.node == other.node {
			err = errors.Join(err, r.attach(e.node, e.device, &other, 0))
			continue
		}
		err = errors.Join(err, r.attach(e.node, e.device, nil, e.uplink), r.attach(e.node, e.uplink, &ends[i], 0))
	}
	return r, err
}

// attach attaches the program to a device. It redirects to a pod, or if that is nil to the neighbour behind uplink.
func (r *podsRedirect) attach(node *lab.Host, device int, to *podEnd, uplink int) error {
	spec, err := LoadPodsRedirect()
	if err != nil {
		return err
	}
	out, isPod, mac := uint32(uplink), uint8(0), [6]uint8{}
	if to != nil {
		out, isPod, mac = uint32(to.device), 1, to.mac
	}
	err = errors.Join(spec.Variables["to_device"].Set(out), spec.Variables["to_pod"].Set(isPod), spec.Variables["pod_mac"].Set(mac))
	if err != nil {
		return err
	}
	objects := &PodsRedirectObjects{}
	if err := spec.LoadAndAssign(objects, nil); err != nil {
		return err
	}
	r.objects = append(r.objects, objects)
	return node.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: objects.PodsRedirect, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			r.links = append(r.links, l)
		}
		return err
	})
}

// packets returns how many packets were redirected.
func (r *podsRedirect) packets() (sum uint64, err error) {
	for _, o := range r.objects {
		var n uint64
		if err := o.Packets.Get(&n); err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (r *podsRedirect) close() error {
	return errors.Join(harness.CloseAll(r.links), harness.CloseAll(r.objects))
}
