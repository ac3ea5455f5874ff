// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

// ListenersOf returns the cookies of the proxy's listeners that the tables have for a network namespace: those for
// connections of applications, or those for connections from other hosts.
func (m *Datapath) ListenersOf(cookie uint64, outbound bool) (all []uint64) {
	for place := range uint32(maxListeners) {
		var socket uint64
		if m.maps(bpf.MeshMapMeshListeners).Lookup(&bpf.MeshMeshListenerKey{Netns: cookie, Place: place, Outbound: number(outbound)}, &socket) == nil {
			all = append(all, socket)
		}
	}
	return all
}

// AddListener adds a listener of the proxy in a network namespace to the tables: fd is a socket.
func (m *Datapath) AddListener(cookie uint64, outbound bool, fd int) error {
	for place := range uint32(maxListeners) {
		key, socket := bpf.MeshMeshListenerKey{Netns: cookie, Place: place, Outbound: number(outbound)}, uint64(fd)
		err := m.maps(bpf.MeshMapMeshListeners).Update(&key, &socket, ebpf.UpdateNoExist)
		if err == nil || !errors.Is(err, ebpf.ErrKeyExist) {
			return err
		}
	}
	return fmt.Errorf("the proxy has more than %d sockets that listen for connections of one direction", maxListeners)
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
