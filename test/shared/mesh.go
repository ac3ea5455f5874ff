// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"testing"

	"github.com/cilium/ebpf"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type mesh_question MeshPolicy mesh_policy.bpf.c

// MeshQuestion asks about one connection, and has the answers.
type MeshQuestion = MeshPolicyMeshQuestion

// Ports of proxies in MeshPolicy.
const (
	MeshOutboundPort = 15001
	MeshInboundPort  = 15006
	MeshDNSPort      = 15053
)

// A MeshPolicy runs the policy of the sidecar shortcut over tables of its own; Maps has these by name.
type MeshPolicy struct {
	Maps map[string]*ebpf.Map

	t       testing.TB
	program *ebpf.Program
}

// LoadMesh loads the program for one test.
func LoadMesh(t testing.TB) *MeshPolicy {
	t.Helper()
	spec, err := LoadMeshPolicy()
	if err != nil {
		t.Fatal(err)
	}
	for name, port := range map[string]uint16{
		MeshPolicyVarMeshOutboundPort: MeshOutboundPort, MeshPolicyVarMeshInboundPort: MeshInboundPort, MeshPolicyVarMeshDnsPort: MeshDNSPort,
	} {
		if err := spec.Variables[name].Set(port); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &MeshPolicy{c.Maps, t, c.Programs[MeshPolicyProgBeelineMeshPolicy]}
}

// Ask sets the answers of a question. The test's process is the one that connects.
func (p *MeshPolicy) Ask(q *MeshQuestion) {
	p.t.Helper()
	q.Done = 0
	questions := p.Maps[MeshPolicyMapMeshQuestions]
	err := questions.Put(uint32(0), q)
	if err == nil {
		_, err = p.program.Run(&ebpf.RunOptions{})
	}
	if err == nil {
		err = questions.Lookup(uint32(0), q)
	}
	if err != nil || q.Done == 0 {
		p.t.Fatalf("the program has not answered: %v", err)
	}
}
