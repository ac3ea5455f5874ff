// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/node/netns"
)

// The links of the sidecar shortcut are pinned as links/mesh-CGROUP-HOOK, with the id of the pod's cgroup. The hooks in
// its network namespace are inbound_COOKIE, loopback_COOKIE at lo, and reroute_COOKIE_INDEX at other devices.

const (
	meshInbound  = "inbound_"
	meshLoopback = "loopback_"
	meshReroute  = "reroute_"
)

// A meshLink is a pinned link at a pod.
type meshLink struct {
	Link
	// netns is the cookie of the namespace; 0: the link is at the cgroup. device is the index of a device in it;
	// 0: the link is at the namespace itself, or at lo.
	netns    uint64
	device   int
	loopback bool
}

// meshLinkOf reads the name of the hook. It is not ok if this version has none of that name.
func meshLinkOf(pinned Link) (l meshLink, ok bool) {
	l.Link = pinned
	cookie, inbound := strings.CutPrefix(l.Hook, meshInbound)
	if !inbound {
		cookie, l.loopback = strings.CutPrefix(l.Hook, meshLoopback)
	}
	if inbound || l.loopback {
		var err error
		l.netns, err = strconv.ParseUint(cookie, 10, 64)
		return l, err == nil
	}
	if at, reroute := strings.CutPrefix(l.Hook, meshReroute); reroute {
		n, err := fmt.Sscanf(at, "%d_%d", &l.netns, &l.device)
		return l, n == 2 && err == nil
	}
	return l, slices.ContainsFunc(meshHooks, func(h CgroupHook) bool { return h.Name == l.Hook })
}

// meshLinks lists the pinned links at pods.
func meshLinks(bpffs string) (all []meshLink, err error) {
	pinned, err := PinnedLinks(bpffs, MeshComponent)
	for _, p := range pinned {
		if l, ok := meshLinkOf(p); ok {
			all = append(all, l)
		}
	}
	return all, err
}

// attachedMesh finds the programs at pods.
func attachedMesh(bpffs string) (all []AttachedProgram, err error) {
	links, err := meshLinks(bpffs)
	for _, l := range links {
		all = append(all, AttachedProgram{l.Program, fmt.Sprintf("%s of cgroup %d", l.Hook, l.Owner)})
	}
	return all, err
}

// replaceMesh replaces the programs of an earlier agent at pods.
func (d *Datapath) replaceMesh() error {
	if d.options.Mesh.Sockmap {
		if err := d.attachMeshMessages(); err != nil {
			return err
		}
	}
	links, err := meshLinks(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := d.replaceMeshLink(&l); err != nil {
			return fmt.Errorf("replace %s of cgroup %d: %w", l.Hook, l.Owner, err)
		}
	}
	if !d.options.Mesh.Sockmap { // sockets no longer join
		return detachMeshRead(d.options.BPFFS)
	}
	return nil
}

func (d *Datapath) replaceMeshLink(l *meshLink) error {
	if l.Detached {
		return l.Remove()
	}
	load := func(uint64) (*ebpf.Program, error) { return d.program(MeshProgBeelineMeshLoopback).Clone() }
	switch {
	case l.netns == 0:
		load = func(uint64) (*ebpf.Program, error) { return d.program(meshHooks[l.rank()].Program).Clone() }
	case l.device != 0:
		load = d.loadMeshReroute
	case !l.loopback:
		load = d.loadMeshInbound
	}
	program, err := load(l.netns)
	if err != nil {
		return err
	}
	defer program.Close()
	return l.Replace(program)
}

// detachMesh detaches the programs from all pods.
func detachMesh(bpffs string) error {
	links, err := meshLinks(bpffs)
	if err != nil {
		return err
	}
	return errors.Join(removeMeshLinks(links), detachMeshRead(bpffs))
}

// removeMeshLinks removes what redirects first, in reverse order of attachment.
func removeMeshLinks(links []meshLink) error {
	slices.SortFunc(links, func(a, b meshLink) int { return b.rank() - a.rank() })
	for _, l := range links {
		if err := l.Remove(); err != nil {
			return fmt.Errorf("detach %s from cgroup %d: %w", l.Hook, l.Owner, err)
		}
	}
	return removeMeshRoutes(links)
}

// rank is the position in the order of attachment.
func (l *meshLink) rank() int {
	if l.netns != 0 {
		return len(meshHooks)
	}
	return slices.IndexFunc(meshHooks, func(h CgroupHook) bool { return h.Name == l.Hook })
}

// A MeshPod is a pod with programs of the sidecar shortcut.
type MeshPod struct {
	Cgroup uint64 // id: the inode of its directory
	// Outbound: all programs are at its cgroup.
	Outbound bool
	// Inbound are the cookies of the network namespaces with a program.
	Inbound []uint64
	// Rerouted are the indexes of devices with a program.
	Rerouted []int
}

// MeshPods lists the pods with programs, by the id of their cgroup. Those that are gone are not among them.
func (d *Datapath) MeshPods() (map[uint64]*MeshPod, error) {
	links, err := meshLinks(d.options.BPFFS)
	all, hooks := map[uint64]*MeshPod{}, map[uint64]int{}
	for _, l := range links {
		if l.Detached {
			continue
		}
		p := all[l.Owner]
		if p == nil {
			p = &MeshPod{Cgroup: l.Owner}
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
		p.Outbound = hooks[l.Owner] == len(meshHooks)
	}
	return all, err
}

// AttachMesh attaches the programs to the cgroup of a pod, unless they are there.
func (d *Datapath) AttachMesh(directory string) error {
	pod, err := NewCgroupTarget(directory)
	if err != nil {
		return err
	}
	for _, h := range meshHooks {
		if err := d.AttachLink(MeshComponent, pod.ID, h.Name, d.program(h.Program), pod, h.Attach); err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.Name, directory, err)
		}
	}
	return nil
}

// AttachMeshInbound attaches the program for connections from other hosts to the network namespace of a pod.
func (d *Datapath) AttachMeshInbound(cgroup uint64, namespace *netns.Namespace) error {
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	program, err := d.loadMeshInbound(cookie)
	if err != nil {
		return err
	}
	defer program.Close()
	hook := meshInbound + strconv.FormatUint(cookie, 10)
	return d.AttachLink(MeshComponent, cgroup, hook, program, NamespaceTarget{namespace}, ebpf.AttachSkLookup)
}

// AttachMeshLoopback attaches the program by which a socket whose messages skip TCP sends a RST if it is closed with
// messages unread, to the device lo of the network namespace of a pod. It does nothing if messages do not skip TCP.
func (d *Datapath) AttachMeshLoopback(cgroup uint64, namespace *netns.Namespace) error {
	if !d.MessagesSkipTCP() {
		return nil
	}
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	hook, lo := meshLoopback+strconv.FormatUint(cookie, 10), DeviceTarget{Index: loopbackIndex, Namespace: namespace}
	return d.AttachLink(MeshComponent, cgroup, hook, d.program(MeshProgBeelineMeshLoopback), lo, ebpf.AttachTCXEgress)
}

// DetachMesh detaches all programs of a pod, by the id of its cgroup.
func (d *Datapath) DetachMesh(cgroup uint64) error {
	return d.removeMesh(func(l meshLink) bool { return l.Owner == cgroup })
}

// ForgetMesh removes the pins of links whose cgroup or namespace is gone.
func (d *Datapath) ForgetMesh() error {
	return d.removeMesh(func(l meshLink) bool { return l.Detached })
}

func (d *Datapath) removeMesh(chosen func(meshLink) bool) error {
	links, err := meshLinks(d.options.BPFFS)
	if err != nil {
		return err
	}
	return removeMeshLinks(slices.DeleteFunc(links, func(l meshLink) bool { return !chosen(l) }))
}

// loadMeshInbound loads the program for a network namespace.
func (d *Datapath) loadMeshInbound(cookie uint64) (*ebpf.Program, error) {
	return d.loadMeshAt(cookie, LoadMeshInbound, MeshInboundProgBeelineMeshInbound)
}

// loadMeshAt loads a program that has the cookie of its network namespace.
func (d *Datapath) loadMeshAt(cookie uint64, load func() (*ebpf.CollectionSpec, error), program string) (*ebpf.Program, error) {
	spec, err := load()
	if err != nil {
		return nil, err
	}
	if err := d.prepareMaps(spec); err != nil {
		return nil, err
	}
	if err := spec.Variables[MeshInboundVarMeshNetns].Set(cookie); err != nil {
		return nil, err
	}
	loaded, err := d.loadObjects([]*ebpf.CollectionSpec{spec})
	return loaded[program], err
}
