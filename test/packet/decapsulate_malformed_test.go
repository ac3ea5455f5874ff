// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// A truncated packet passes unchanged, wherever it was cut off.
func TestEncapsulatedTruncated(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.payload = []byte("long enough that Ethernet pads nothing, with or without an outer header")
		frame := how.wrap(t, f, question)
		for n := shortest(at, f); n < len(frame); n++ {
			w.ignores(t, at, frame[:n])
		}
		w.remembersNothing(t)
		w.opens(t, at, frame, question.translated(question.from, question.backend))
	})
}

// An inner packet that is longer than its outer one, or whose headers contradict themselves.
func TestEncapsulatedContradictions(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		if how.kind == model.Opt {
			return // it has one header
		}
		question.payload = []byte("long enough that Ethernet pads nothing, with or without an outer header")
		plain := question.frame(t)
		for _, change := range contradictions(f, question.protocol, len(plain)) {
			damaged := bytes.Clone(plain)
			copy(damaged[change.at:], change.bytes)
			question.inner = repair(damaged, 14)[14:]
			before := w.counts(t)
			w.ignores(t, at, how.wrap(t, f, question))
			before[model.NotService]++
			if w.counts(t) != before {
				t.Errorf("%s: counted %v, want %v", change.name, w.counts(t), before)
			}
		}
		// The frame is longer than the outer header says, and the inner packet ends there.
		question.inner = nil
		frame := append(how.wrap(t, f, question), make([]byte, 8)...)
		inner := frame[len(frame)-8-len(plain):] // 14 bytes before the packet inside
		lengthen(inner, f, 8)
		w.ignores(t, at, frame)
		lengthen(inner, f, -8)
		lengthen(frame, f, -1)
		w.ignores(t, at, frame)
		w.remembersNothing(t)
	})
}

// lengthen changes the length in an IP header. `at` is 14 bytes before it.
func lengthen(at []byte, f family, by int) {
	field := at[14+2:]
	if f.client.Is6() {
		field = at[14+4:]
	}
	binary.BigEndian.PutUint16(field, uint16(int(binary.BigEndian.Uint16(field))+by))
	repair(at, 14)
}

// Impossible sources are impossible in inner packets, too.
func TestEncapsulatedImpossibleSources(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.from = on(f.loopback(), clientPort)
		before := w.counts(t)
		w.ignores(t, at, how.wrap(t, f, question))
		w.counted(t, before, model.Malformed)
		w.remembersNothing(t)
	})
}

// Options that differ from the balancer's in one byte belong to somebody else: every other value of each
// identifying byte.
func TestOptionsThatAreNearlyOurs(t *testing.T) {
	w := newDSRScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.fromBalancer(f.question(protocol, toMany+uint16(model.Opt)), on(f.local, targetPort))
		frame := wrapOption(t, f, question)
		w.opens(t, at, frame, question.translated(question.from, question.backend))
		w.forget(t)
		fields := []int{34, 35}
		if f.client.Is6() {
			fields = []int{55, 56, 57, 76, 77} // in a header of another length all else moves
		}
		for _, field := range fields {
			for value := range 256 {
				damaged := bytes.Clone(frame)
				if damaged[field] == byte(value) {
					continue
				}
				damaged[field] = byte(value)
				repair(damaged, 14)
				if got := w.run(t, at, damaged); got.Action != model.ActionPass || !bytes.Equal(got.Frame, damaged) {
					t.Fatalf("byte %d is %#x: action %v, and the packet became\n%s", field, value, got.Action, hex.Dump(got.Frame))
				}
			}
		}
		w.remembersNothing(t)
	})
}

// Packets damaged at random: one that goes on is either unchanged, or was decapsulated: then its bytes are
// those inside, except for the translation, and it is for a backend of this node.
func TestEncapsulatedRandomDamage(t *testing.T) {
	w := newDSRScene(t)
	random := rand.New(rand.NewPCG(seedFlag.Of(t), 2))
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.payload = []byte("some payload, so that there is something that may be missing")
		frame := how.wrap(t, f, question)
		opened := 0
		for range 1500 {
			damaged := bytes.Clone(frame)
			for range 1 + random.IntN(3) {
				damaged[12+random.IntN(len(frame)-12-len(question.payload))] = byte(random.Uint32())
			}
			if random.IntN(4) > 0 {
				repair(damaged, 14)
			}
			if random.IntN(4) == 0 {
				damaged = damaged[:max(shortest(at, families[1]), random.IntN(len(damaged)))]
			}
			got := w.run(t, at, damaged)
			if got.Action != model.ActionPass || bytes.Equal(got.Frame, damaged) {
				continue
			}
			opened++
			headers := 14 + 40 + 20 // at most; the packet may end in its payload, and before its frame
			unchanged := got.Frame[min(len(got.Frame), max(headers, len(got.Frame)-len(question.payload)/2)):]
			if ends, ok := model.Ends(got.Frame); len(got.Frame) >= len(damaged) || !bytes.Contains(damaged, unchanged) ||
				ok && ends.Destination != f.local && ends.Destination != f.local.Next() {
				t.Fatalf("of\n%scame\n%s", hex.Dump(damaged), hex.Dump(got.Frame))
			}
		}
		if opened == 0 {
			t.Error("none was decapsulated: the test is wrong")
		}
	})
}
