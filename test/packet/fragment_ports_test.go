// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// A datagram's ports are forgotten when all of it has left, in whatever order: a later fragment with the same
// identification is another datagram's (RFC 6864 section 4.1). They stay if fragments are missing, or came twice.
func TestFragmentPortsAreForgotten(t *testing.T) {
	w := newScene(t)
	for _, row := range []struct {
		name      string
		sent      []int // of three fragments
		forgotten bool
	}{
		{"in order", []int{0, 1, 2}, true},
		{"last one before the middle one", []int{0, 2, 1}, true},
		{"first one twice at once", []int{0, 0, 1, 2}, true},
		{"first one again after the middle one", []int{0, 1, 0, 1, 2}, true},
		{"first one again as the last one", []int{0, 1, 2, 0}, false},
		{"middle one twice", []int{0, 1, 1, 2}, false},
		{"last one twice, then the middle one", []int{0, 2, 2, 1}, false},
		{"middle one missing", []int{0, 2}, false},
		{"last one missing", []int{0, 1}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			w.enter(t)
			w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
				for name, path := range w.fragmentPaths(t, at, f, protocol) {
					w.forget(t)
					for _, frame := range path.before {
						w.run(t, at, frame)
					}
					for n, i := range row.sent {
						if !path.follows(t, w, path.parts[i]) {
							t.Fatalf("%s: packet %d, fragment %d, does not follow the first one", name, n, i)
						}
					}
					if got := path.follows(t, w, path.parts[1]); got == row.forgotten {
						t.Errorf("%s: another datagram's fragment follows the earlier one: %v, want %v", name, got, !row.forgotten)
					}
					for i := range path.parts { // the identification again, for a whole datagram
						if !path.follows(t, w, path.parts[i]) {
							t.Errorf("%s: fragment %d of the next datagram does not follow the first one", name, i)
						}
					}
				}
			})
		})
	}
}

// fragmentPath is a datagram in three fragments, and the hooks that see each of them. All but the last hook pass
// it on.
type fragmentPath struct {
	hooks  []hook
	before [][]byte // packets of its flow
	parts  [][]byte
}

// fragmentPaths are the ways of a datagram through the node.
func (w *world) fragmentPaths(t testing.TB, at hook, f family, protocol uint8) map[string]fragmentPath {
	t.Helper()
	const id = 0x55
	payload := bytes.Repeat([]byte("0123456789"), 15)
	to := func(port uint16) [][]byte {
		question := f.question(protocol, port)
		question.payload = payload
		return question.fragments(t, id, 64)
	}
	toTC := []hook{at}
	if at == atXDP {
		toTC = []hook{atXDP, atIngress}
	}
	answer := reply(on(f.local, targetPort), on(f.client, clientPort), protocol)
	answer.payload = payload
	paths := map[string]fragmentPath{
		"to a backend on another node": {[]hook{at}, nil, to(toRemote)},
		"to a backend here":            {[]hook{at}, nil, to(toLocal)},
		"by another device":            {toTC, nil, to(toEth1)},
		"reply of a backend here": {[]hook{at, atEgress}, [][]byte{f.question(protocol, toLocal).frame(t)},
			answer.fragments(t, id, 64)},
	}
	for _, dsr := range encapsulations {
		paths[fmt.Sprint("DSR, ", encapsulationNames[dsr])] = fragmentPath{[]hook{at}, nil, to(direct(toRemote, dsr))}
	}
	return paths
}

// follows reports whether the last hook translates a fragment, or encapsulates it. Otherwise a hook drops it, or
// all pass it unchanged.
func (p fragmentPath) follows(t testing.TB, w *world, frame []byte) bool {
	t.Helper()
	for i, at := range p.hooks {
		got := w.run(t, at, frame)
		changed := got.Action == model.ActionSend || got.Action == model.ActionPass && !bytes.Equal(got.Frame, frame)
		if changed && i < len(p.hooks)-1 {
			t.Fatalf("%s: action %v, want the packet passed on\n%s", at, got.Action, hex.Dump(frame))
		}
		if changed || got.Action == model.ActionDrop {
			return changed
		}
	}
	return false
}
