// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// The segment that completes a handshake has found its flow among the half-open ones. Before it moves the flow, another
// CPU does so for another segment, and a third CPU puts a new flow at the former place. The segment, and those that
// follow, belong to their flow nevertheless, and the tables are as the other CPUs left them. Instructions at the
// beginning of ct_assure do what these CPUs do.
func TestPlaceIsTakenMeanwhile(t *testing.T) {
	w := newWorld(t, limits{tracks: setPlaces}) // one set in each table
	w.apply(t, w.scene())
	w.enter(t)
	moved, other := w.handshakeFrom(t, "44.0.0.1"), w.handshakeFrom(t, "44.0.0.2")
	w.run(t, atIngress, moved.syn)
	w.run(t, atEgress, moved.answer)
	before := w.readTables(t)
	ackAsAlone := copyOf(w.run(t, atIngress, moved.ack))
	assured := w.readTables(t)
	dataAsAlone := copyOf(w.run(t, atIngress, moved.data))
	w.writeTables(t, assured)
	w.run(t, atIngress, other.syn)
	after := w.readTables(t)
	after.reuse(t, before)
	w.writeTables(t, before)

	alone := w.ingress
	w.ingress = w.changing(t, "ct_assure", after)
	if got := w.run(t, atIngress, moved.ack); !w.met(atIngress, got, ackAsAlone) {
		t.Errorf("the segment leaves as %x, without other CPUs as %x", got.Frame, ackAsAlone.Frame)
	}
	w.ingress = alone
	now := w.readTables(t)
	if bytes.Equal(now[bpf.EdgeTCMapUnrepliedTags], before[bpf.EdgeTCMapUnrepliedTags]) {
		t.Fatal("the segment does not move its flow")
	}
	for _, name := range []string{bpf.EdgeTCMapUnrepliedTags, bpf.EdgeTCMapConntrackTags, bpf.EdgeTCMapConntrack} {
		if !bytes.Equal(now[name], after[name]) {
			t.Errorf("%s is not as the other CPU left it", name)
		}
	}
	if got := w.run(t, atIngress, moved.data); !w.met(atIngress, got, dataAsAlone) {
		t.Errorf("data leave as %x, without other CPUs as %x", got.Frame, dataAsAlone.Frame)
	}
}

// handshakeFrames are the frames of a connection's beginning.
type handshakeFrames struct{ syn, answer, ack, data []byte }

func (w *world) handshakeFrom(t testing.TB, client string) (h handshakeFrames) {
	t.Helper()
	f := families[0]
	p := f.question(tcp, toLocal)
	p.from = netip.AddrPortFrom(netip.MustParseAddr(client), clientPort)
	p.seq = 1000
	h.syn = p.frame(t)
	answer := reply(on(f.local, targetPort), p.from, tcp)
	answer.seq, answer.ack = 5000, 1001
	h.answer = answer.frame(t)
	p.flags, p.seq, p.ack = ack, 1001, 5001
	h.ack = p.frame(t)
	p.flags, p.payload = psh|ack, []byte("data")
	h.data = p.frame(t)
	return h
}

func copyOf(r model.Result) model.Result {
	r.Frame = slices.Clone(r.Frame)
	return r
}

// tables are the contents of the tables of flows, which have one set each.
type tables map[string][]byte

var namesOfTables = []string{bpf.EdgeTCMapUnrepliedTags, bpf.EdgeTCMapUnreplied, bpf.EdgeTCMapConntrackTags, bpf.EdgeTCMapConntrack}

func (w *world) readTables(t testing.TB) tables {
	t.Helper()
	all := tables{}
	for _, name := range namesOfTables {
		value, err := w.maps[name].LookupBytes(uint32(0))
		must(t, err)
		all[name] = value
	}
	return all
}

func (w *world) writeTables(t testing.TB, all tables) {
	t.Helper()
	for name, value := range all {
		must(t, w.maps[name].Put(uint32(0), value))
	}
}

// reuse moves the half-open flow of these tables to the places of that of other tables: to which a new flow comes is
// chance. Both have one, with an entry for each direction.
func (all tables) reuse(t testing.TB, taken tables) {
	t.Helper()
	const tag, slot, evictions, eviction = 4, 128, 128, 8
	tags, set := all[bpf.EdgeTCMapUnrepliedTags], all[bpf.EdgeTCMapUnreplied]
	from, to := takenPlaces(tags), takenPlaces(taken[bpf.EdgeTCMapUnrepliedTags])
	if len(from) != 2 || len(to) != 2 {
		t.Fatalf("entries of half-open flows at %v and %v, want two each", from, to)
	}
	formerTags, former := slices.Clone(tags), slices.Clone(set)
	for _, place := range from {
		binary.NativeEndian.PutUint32(tags[place*tag:], 0)
	}
	for i, place := range to {
		copy(tags[place*tag:][:tag], formerTags[from[i]*tag:])
		copy(set[place*eviction:][:eviction], former[from[i]*eviction:])
		copy(set[evictions+place*slot:][:slot], former[evictions+from[i]*slot:])
	}
}

// takenPlaces are those with a tag.
func takenPlaces(tags []byte) (all []int) {
	for place := range setPlaces {
		if binary.NativeEndian.Uint32(tags[4*place:]) != 0 {
			all = append(all, place)
		}
	}
	return all
}

// changing returns the program at tc's ingress that sets the tables when a function begins.
func (w *world) changing(t testing.TB, function string, to tables) *ebpf.Program {
	t.Helper()
	const size = 2048 // struct ct_set
	values, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: uint32(len(namesOfTables))})
	must(t, err)
	t.Cleanup(func() { values.Close() })
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Reg(asm.R7, asm.R2)} // the arguments
	for i, name := range namesOfTables {
		must(t, values.Put(uint32(i), append(slices.Clone(to[name]), make([]byte, size-len(to[name]))...)))
		code = append(code,
			asm.StoreImm(asm.RFP, -4, int64(i), asm.Word), asm.StoreImm(asm.RFP, -8, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, values.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "changed"),
			asm.LoadMapPtr(asm.R1, w.maps[name].FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8), asm.Mov.Reg(asm.R3, asm.R0), asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call())
	}
	code = append(code, asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("changed"), asm.Mov.Reg(asm.R2, asm.R7))
	const ingress = bpf.EdgeTCProgBeelineEdgeIngress
	return w.reload(t, bpf.LoadEdgeTC, w.programs.tc.Maps, func(spec *ebpf.CollectionSpec) {
		spec.Programs = map[string]*ebpf.ProgramSpec{ingress: spec.Programs[ingress]}
		all := spec.Programs[ingress].Instructions
		at := slices.IndexFunc(all, func(i asm.Instruction) bool { return i.Symbol() == function })
		if at < 0 {
			t.Fatalf("%s has no function %s", ingress, function)
		}
		code[0] = code[0].WithMetadata(all[at].Metadata)
		all[at].Metadata = asm.Metadata{}
		spec.Programs[ingress].Instructions = slices.Insert(all, at, code...)
	})[ingress]
}
