// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
)

// The links of the sidecar shortcut are pinned as links/mesh-CGROUP-HOOK, with the id of the pod's cgroup. The hooks in
// its network namespace are inbound_COOKIE, loopback_COOKIE at lo, and reroute_COOKIE_INDEX at other devices.

const (
	inboundHook  = "inbound_"
	loopbackHook = "loopback_"
	rerouteHook  = "reroute_"
)

// A podLink is a pinned link at a pod.
type podLink struct {
	bpf.Link
	// netns is the cookie of the namespace; 0: the link is at the cgroup. device is the index of a device in it;
	// 0: the link is at the namespace itself, or at lo.
	netns    uint64
	device   int
	loopback bool
}

// podLinkOf reads the name of the hook. It is not ok if this version has none of that name.
func podLinkOf(pinned bpf.Link) (l podLink, ok bool) {
	l.Link = pinned
	cookie, inbound := strings.CutPrefix(l.Hook, inboundHook)
	if !inbound {
		cookie, l.loopback = strings.CutPrefix(l.Hook, loopbackHook)
	}
	if inbound || l.loopback {
		var err error
		l.netns, err = strconv.ParseUint(cookie, 10, 64)
		return l, err == nil
	}
	if at, reroute := strings.CutPrefix(l.Hook, rerouteHook); reroute {
		n, err := fmt.Sscanf(at, "%d_%d", &l.netns, &l.device)
		return l, n == 2 && err == nil
	}
	return l, slices.ContainsFunc(podHooks, func(h bpf.CgroupHook) bool { return h.Name == l.Hook })
}

// podLinks lists the pinned links at pods.
func podLinks(bpffs string) (all []podLink, err error) {
	pinned, err := bpf.PinnedLinks(bpffs, componentName)
	for _, p := range pinned {
		if l, ok := podLinkOf(p); ok {
			all = append(all, l)
		}
	}
	return all, err
}

// attachedToPods finds the programs at pods.
func attachedToPods(bpffs string) (all []bpf.AttachedProgram, err error) {
	links, err := podLinks(bpffs)
	for _, l := range links {
		all = append(all, bpf.AttachedProgram{ID: l.Program, At: fmt.Sprintf("%s of cgroup %d", l.Hook, l.Owner)})
	}
	return all, err
}

// replace replaces the programs of an earlier agent at pods.
func (m *Datapath) replace() error {
	if m.Options.Sockmap {
		if err := m.attachMessages(); err != nil {
			return err
		}
	}
	links, err := podLinks(m.datapath.BPFFS())
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := m.replaceLink(&l); err != nil {
			return fmt.Errorf("replace %s of cgroup %d: %w", l.Hook, l.Owner, err)
		}
	}
	if !m.Options.Sockmap { // sockets no longer join
		return detachRead(m.datapath.BPFFS())
	}
	return nil
}

func (m *Datapath) replaceLink(l *podLink) error {
	if l.Detached {
		return l.Remove()
	}
	load := func(uint64) (*ebpf.Program, error) {
		return m.datapath.Program(bpf.MeshProgBeelineMeshLoopback).Clone()
	}
	switch {
	case l.netns == 0:
		load = func(uint64) (*ebpf.Program, error) { return m.datapath.Program(podHooks[l.rank()].Program).Clone() }
	case l.device != 0:
		load = m.loadReroute
	case !l.loopback:
		load = m.loadInbound
	}
	program, err := load(l.netns)
	if err != nil {
		return err
	}
	defer program.Close()
	return l.Replace(program)
}

// detachFromPods detaches the programs from all pods.
func detachFromPods(bpffs string) error {
	links, err := podLinks(bpffs)
	if err != nil {
		return err
	}
	return errors.Join(removePodLinks(bpffs, links), detachRead(bpffs))
}

// removePodLinks removes what redirects first, in reverse order of attachment.
func removePodLinks(bpffs string, links []podLink) error {
	slices.SortFunc(links, func(a, b podLink) int { return b.rank() - a.rank() })
	for _, l := range links {
		if err := l.Remove(); err != nil {
			return fmt.Errorf("detach %s from cgroup %d: %w", l.Hook, l.Owner, err)
		}
	}
	return removeRoutes(bpffs, links)
}

// rank is the position in the order of attachment.
func (l *podLink) rank() int {
	if l.netns != 0 {
		return len(podHooks)
	}
	return slices.IndexFunc(podHooks, func(h bpf.CgroupHook) bool { return h.Name == l.Hook })
}

// An AttachedPod is a pod with programs of the sidecar shortcut.
type AttachedPod struct {
	Cgroup uint64 // id: the inode of its directory
	// Outbound: all programs are at its cgroup.
	Outbound bool
	// Inbound are the cookies of the network namespaces with a program.
	Inbound []uint64
	// Rerouted are the indexes of devices with a program.
	Rerouted []int
}

// AttachedPods lists the pods with programs, by the id of their cgroup. Those that are gone are not among them.
func (m *Datapath) AttachedPods() (map[uint64]*AttachedPod, error) {
	links, err := podLinks(m.datapath.BPFFS())
	all, hooks := map[uint64]*AttachedPod{}, map[uint64]int{}
	for _, l := range links {
		if l.Detached {
			continue
		}
		p := all[l.Owner]
		if p == nil {
			p = &AttachedPod{Cgroup: l.Owner}
			all[l.Owner] = p
		}
		switch {
		case l.loopback:
			continue
		case l.device != 0:
			p.Rerouted = append(p.Rerouted, l.device)
			continue
		case l.netns != 0:
			p.Inbound = append(p.Inbound, l.netns)
			continue
		}
		hooks[l.Owner]++
		p.Outbound = hooks[l.Owner] == len(podHooks)
	}
	return all, err
}

// AttachCgroup attaches the programs to the cgroup of a pod, unless they are there.
func (m *Datapath) AttachCgroup(directory string) error {
	pod, err := bpf.NewCgroupTarget(directory)
	if err != nil {
		return err
	}
	for _, h := range podHooks {
		if err := m.datapath.AttachLink(componentName, pod.ID, h.Name, m.datapath.Program(h.Program), pod, h.Attach); err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.Name, directory, err)
		}
	}
	return nil
}

// AttachInbound attaches the program for connections from other hosts to the network namespace of a pod.
func (m *Datapath) AttachInbound(cgroup uint64, namespace *netns.Namespace) error {
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	program, err := m.loadInbound(cookie)
	if err != nil {
		return err
	}
	defer program.Close()
	hook := inboundHook + strconv.FormatUint(cookie, 10)
	return m.datapath.AttachLink(componentName, cgroup, hook, program, bpf.NamespaceTarget{Namespace: namespace}, ebpf.AttachSkLookup)
}

// AttachLoopback attaches the program by which a socket whose messages skip TCP sends a RST if it is closed with
// messages unread, to the device lo of the network namespace of a pod. It does nothing if messages do not skip TCP.
func (m *Datapath) AttachLoopback(cgroup uint64, namespace *netns.Namespace) error {
	if !m.MessagesSkipTCP() {
		return nil
	}
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	hook, lo := loopbackHook+strconv.FormatUint(cookie, 10), bpf.DeviceTarget{Index: bpf.LoopbackIndex, Namespace: namespace}
	return m.datapath.AttachLink(componentName, cgroup, hook, m.datapath.Program(bpf.MeshProgBeelineMeshLoopback), lo, ebpf.AttachTCXEgress)
}

// Detach detaches all programs of a pod, by the id of its cgroup.
func (m *Datapath) Detach(cgroup uint64) error {
	return m.removeLinks(func(l podLink) bool { return l.Owner == cgroup })
}

// ForgetGone removes the pins of links whose cgroup or namespace is gone.
func (m *Datapath) ForgetGone() error {
	return m.removeLinks(func(l podLink) bool { return l.Detached })
}

func (m *Datapath) removeLinks(chosen func(podLink) bool) error {
	links, err := podLinks(m.datapath.BPFFS())
	if err != nil {
		return err
	}
	return removePodLinks(m.datapath.BPFFS(), slices.DeleteFunc(links, func(l podLink) bool { return !chosen(l) }))
}

// loadInbound loads the program for a network namespace.
func (m *Datapath) loadInbound(cookie uint64) (*ebpf.Program, error) {
	return m.loadAt(cookie, bpf.LoadMeshInbound, bpf.MeshInboundProgBeelineMeshInbound)
}

// loadAt loads a program that has the cookie of its network namespace.
func (m *Datapath) loadAt(cookie uint64, load func() (*ebpf.CollectionSpec, error), program string) (*ebpf.Program, error) {
	spec, err := load()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[bpf.MeshInboundVarMeshNetns].Set(cookie); err != nil {
		return nil, err
	}
	loaded, err := m.datapath.Load(spec)
	return loaded[program], err
}
