// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"sync/atomic"
)

// lastIndex is of the device that was created last by Plug: beyond those of a new lab.
var lastIndex atomic.Int64

func init() { lastIndex.Store(1000) }

// Plug connects the namespace of a pod that has no device to a node, as a network plugin does for a new pod: with the
// layout of the lab's pods, and the name and the addresses of a pod, which may be another one. Routers do not learn
// that they moved.
func (l *Lab) Plug(namespace, node, as *Host) error {
	p := plan(l.Shape)
	pod := *p.host(as.Name)
	link, atPod, atNode := connectPod(&pod, p.host(node.Name), l.Shape)
	link.index, link.peerHost = int(lastIndex.Add(1)), namespace.Name
	at, err := openHost(l.Name, node.Name)
	if err != nil {
		return err
	}
	defer at.close()
	in, err := openHost(l.Name, namespace.Name)
	if err != nil {
		return err
	}
	defer in.close()
	if err := link.create(l.Name, at, in); err != nil {
		return fmt.Errorf("host %s: device %s: %w", node.Name, link.device, err)
	}
	for _, side := range []struct {
		name   string
		config configPlan
		handle hostHandle
	}{{namespace.Name, atPod, in}, {node.Name, atNode, at}} {
		if err := side.config.configure(side.handle.nl); err != nil {
			return fmt.Errorf("host %s: %w", side.name, err)
		}
	}
	return awaitAddresses(in.nl, atPod.own()...)
}

// Unplug deletes the device of a pod at its node, and the node's rules for it, as a network plugin does when the pod
// ends. The routes go with the device.
func (l *Lab) Unplug(node, pod *Host) error {
	p := plan(l.Shape)
	nl, link, err := node.OpenDevice(pod.Name)
	if err != nil {
		return err
	}
	defer nl.Close()
	_, _, atNode := connectPod(p.host(pod.Name), p.host(node.Name), l.Shape)
	for _, r := range atNode.rules {
		if err := nl.RuleDel(r.rule()); err != nil {
			return fmt.Errorf("host %s: deleting a rule of %s: %w", node.Name, pod.Name, err)
		}
	}
	if err := nl.LinkDel(link); err != nil {
		return fmt.Errorf("host %s: deleting device %s: %w", node.Name, pod.Name, err)
	}
	return nil
}
