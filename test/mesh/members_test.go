// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
)

// Rows of sockets of former pods do not fill the tables: audits delete them, and leave those of pods that are served.
func TestRowsOfFormerPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-sockmap", "--audit-interval=200ms")
	w.startAgent()
	const former = 1 << 40 // no namespace has this cookie
	namespace, err := netns.Open(w.Host("a1").NetNS)
	w.must(err)
	defer namespace.Close()
	served, err := namespace.Cookie()
	w.must(err)
	for _, row := range []uint64{former, served} {
		w.must(w.member(row, func(m *ebpf.Map, k datapath.MeshMeshTuple) error {
			return m.Put(&k, &datapath.MeshMeshMember{Cookie: row})
		}))
	}
	has := func(netns uint64) bool {
		return w.member(netns, func(m *ebpf.Map, k datapath.MeshMeshTuple) error {
			return m.Lookup(&k, new(datapath.MeshMeshMember))
		}) == nil
	}
	w.eventually("the row of a former pod is deleted", func() bool { return !has(former) })
	if !has(served) {
		t.Error("so is one of a pod that is served")
	}
}

// member does something with the row of a socket in a network namespace.
func (w *world) member(netns uint64, do func(*ebpf.Map, datapath.MeshMeshTuple) error) error {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(datapath.TablePath(w.agent.BPFFS(), datapath.MeshMapMeshMembers), nil)
	w.must(err)
	defer m.Close()
	return do(m, datapath.MeshMeshTuple{Netns: netns, LocalPort: 1, RemotePort: 2})
}
