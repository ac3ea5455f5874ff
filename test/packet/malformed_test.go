// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// shortest is the smallest frame that a test run accepts: anything shorter is no Ethernet and, at tc, has no IP
// header.
func shortest(at hook, f family) int {
	switch {
	case at == atXDP:
		return 14
	case f.client.Is4():
		return 14 + 20
	}
	return 14 + 40
}

// A frame that ends before its packet does passes unchanged, wherever it was cut off, and leaves no state.
func TestTruncated(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, port := range []uint16{toRemote, toLocal, rejected, dropped, passed, ranged} {
			p := f.question(protocol, port)
			p.flags, p.payload = ack, []byte("this is some payload, and long enough that there is no padding")
			chains := []probe{p, p}
			if f.client.Is4() {
				chains[1].ipOptions = []layers.IPv4Option{{OptionType: 0x94, OptionLength: 8, OptionData: make([]byte, 6)}}
			} else {
				chains[1].extension = destinationOptions
				chains[1].extensions = [][]byte{extensionHeader(routing, 1), routingHeader(0, 2, 0)}
			}
			for _, p := range chains {
				frame := p.frame(t)
				for n := shortest(at, f); n < len(frame); n++ {
					w.ignores(t, at, frame[:n])
				}
			}
		}
		w.remembersNothing(t)
	})
}

func (w *world) remembersNothing(t testing.TB) {
	t.Helper()
	for _, table := range []string{tracks, halfOpen} {
		if records := w.records(t, table); len(records) > 0 {
			t.Errorf("table %s has %v", table, records)
		}
	}
}

// The first packet of a flow has to have the right checksum, or one that is left to the device: else it is passed
// unchanged, as conntrack finds it invalid, and begins no flow. Datagrams of any length are summed; those without a
// checksum are accepted.
func TestWrongSumBeginsNoFlow(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if protocol == sctp {
			t.Skip("no helper of the kernel computes the CRC32c of SCTP")
		}
		l4, check, header := 14+20, 16, 20
		if f.client.Is6() {
			l4 += 20
		}
		if protocol == udp {
			check, header = 6, 8
		}
		for _, port := range []uint16{toRemote, toLocal} {
			for _, length := range []int{0, 1, 8, 511, 1400} {
				question := f.question(protocol, port)
				question.payload = make([]byte, length)
				begins := func(frame []byte) {
					t.Helper()
					before := w.counts(t)
					w.run(t, at, frame)
					w.counted(t, before, model.New)
					w.forget(t)
				}
				frame := question.frame(t)
				field := frame[l4+check : l4+check+2]
				for _, octet := range []int{0, 1, check, check + 1, header + length - 1} {
					damaged := bytes.Clone(frame)
					damaged[l4+octet] ^= 0x10
					before := w.counts(t)
					w.ignores(t, at, damaged)
					w.counted(t, before, model.Malformed)
				}
				w.remembersNothing(t)
				begins(frame)
				leaveSum(frame)
				begins(frame)
				field[0], field[1] = 0, 0
				if protocol == udp {
					begins(frame)
				} else {
					w.ignores(t, at, frame)
				}
			}
		}
	})
}

// Headers that contradict themselves or the frame: the stack judges them; the edge neither forwards nor answers
// them.
func TestContradictions(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, port := range []uint16{toRemote, toLocal, rejected, dropped} {
			p := f.question(protocol, port)
			p.flags, p.payload = syn, []byte("this is some payload, and long enough that there is no padding")
			frame := p.frame(t)
			for _, change := range contradictions(f, protocol, len(frame)) {
				damaged := append([]byte(nil), frame...)
				copy(damaged[change.at:], change.bytes)
				repair(damaged, 14)
				before := w.counts(t)
				w.ignores(t, at, damaged)
				before[model.Malformed]++
				if w.counts(t) != before {
					t.Errorf("%s: counted %v, want %v", change.name, w.counts(t), before)
				}
			}
		}
		w.remembersNothing(t)
	})
}

type contradiction struct {
	name  string
	at    int
	bytes []byte
}

func contradictions(f family, protocol uint8, length int) (all []contradiction) {
	add := func(name string, at int, bytes ...byte) { all = append(all, contradiction{name, at, bytes}) }
	word := func(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }
	l4, header := 14+20, 20
	if f.client.Is6() {
		l4 += 20
	}
	if protocol == udp {
		header = 8
	}
	said := func(n int) int { return n - 14 } // length from the IP header on
	field := 14 + 2
	if f.client.Is6() {
		field = 14 + 4
		said = func(n int) int { return n - 14 - 40 }
	}
	for n := l4; n < l4+header; n++ {
		add(fmt.Sprintf("length to byte %d of layer 4", n-l4), field, word(said(n))...)
	}
	add("a length beyond the frame", field, word(said(length)+1)...)
	add("the greatest length", field, 0xff, 0xff)
	if f.client.Is4() {
		for version := range byte(16) {
			if version != 4 {
				add(fmt.Sprint("version ", version), 14, version<<4|5)
			}
		}
		for words := range byte(5) {
			add(fmt.Sprint("header of words ", words), 14, 4<<4|words)
		}
		for n := range 20 {
			add(fmt.Sprint("total length ", n), field, word(n)...)
		}
	} else {
		for version := range byte(16) {
			if version != 6 {
				add(fmt.Sprint("version ", version), 14, version<<4)
			}
		}
	}
	if protocol == tcp {
		for words := range byte(5) {
			add(fmt.Sprint("TCP header of words ", words), l4+12, words<<4)
		}
		return all
	}
	for _, n := range []int{0, 1, 7, length - l4 + 1, 0xffff} {
		add(fmt.Sprint("UDP length ", n), l4+4, word(n)...)
	}
	return all
}

// TCP options that extend beyond the segment.
func TestTCPHeaderBeyondSegment(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, port := range []uint16{toRemote, toLocal, rejected} {
			frame := f.question(tcp, port).frame(t)
			l4 := 34
			if f.client.Is6() {
				l4 = 54
			}
			for words := byte(6); words < 16; words++ {
				frame[l4+12] = words << 4
				w.ignores(t, at, frame)
			}
		}
		w.remembersNothing(t)
	})
}

// Random bytes: none are sent, and what passes is unchanged.
func TestRandomBytes(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		random := rand.New(rand.NewPCG(seedFlag.Of(t), 1))
		start := f.question(protocol, toRemote).frame(t)
		for range 2000 {
			frame := make([]byte, shortest(at, families[1])+random.IntN(200))
			for i := range frame {
				frame[i] = byte(random.Uint32())
			}
			copy(frame, start[:12+random.IntN(4)])
			w.ignores(t, at, frame)
		}
		w.remembersNothing(t)
	})
}
