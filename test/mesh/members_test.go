// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/test/lab"
)

// Rows of sockets and programs of former pods do not fill the tables: audits delete them, and leave those of pods that
// are served.
func TestRowsOfFormerPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-sockmap", "--audit-interval=200ms")
	w.startAgent()
	const former = 1 << 40 // no namespace has this cookie
	served := w.cookieOf(w.Host("a1"))
	for _, table := range []struct {
		name  string
		key   func(netns uint64) any
		value any
	}{
		{bpf.MeshMapMeshMembers, func(netns uint64) any { return &bpf.MeshMeshTuple{Netns: netns, LocalPort: 1, RemotePort: 2} }, new(bpf.MeshMeshMember)},
		{bpf.MeshMapMeshPodPrograms, func(netns uint64) any { return &bpf.MeshMeshProgramKey{Netns: netns} }, new(bpf.MeshMeshProgram)},
	} {
		m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), table.name), nil)
		w.must(err)
		defer m.Close()
		w.must(m.Put(table.key(served), table.value))
		w.must(m.Put(table.key(former), table.value))
		has := func(netns uint64) bool { return m.Lookup(table.key(netns), table.value) == nil }
		w.eventually(table.name+": the row of a former pod is deleted", func() bool { return !has(former) })
		if !has(served) {
			t.Errorf("%s: so is one of a pod that is served", table.name)
		}
	}
}

// cookieOf is the cookie of a host's network namespace.
func (w *world) cookieOf(host *lab.Host) uint64 {
	w.t.Helper()
	namespace, err := netns.Open(host.NetNS)
	w.must(err)
	defer namespace.Close()
	cookie, err := namespace.Cookie()
	w.must(err)
	return cookie
}
