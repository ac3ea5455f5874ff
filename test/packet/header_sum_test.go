// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// repair sets the checksum of an IPv4 header, if there is a complete one at an offset of a frame, and returns the
// frame.
func repair(frame []byte, at int) []byte {
	if len(frame) < at+20 || frame[at]>>4 != 4 {
		return frame
	}
	header := frame[at:min(len(frame), at+max(5, int(frame[at]&15))*4)]
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], checksum(0, header))
	return frame
}

// spoil returns a frame with another checksum of the IPv4 header at an offset.
func spoil(frame []byte, at int, by uint16) []byte {
	frame = bytes.Clone(frame)
	binary.BigEndian.PutUint16(frame[at+10:], binary.BigEndian.Uint16(frame[at+10:])^by)
	return frame
}

// spoils are bits of the checksum: each alone, and others together.
func spoils() []uint16 {
	all := []uint16{0x0101, 0xff00, 0x00ff}
	for bit := range 16 {
		all = append(all, 1<<bit)
	}
	return all
}

var nops = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}

// eachIPv4 is each for IPv4, the family with a checksum of the header.
func (w *world) eachIPv4(t *testing.T, test func(t *testing.T, at hook, f family, protocol uint8)) {
	t.Helper()
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if f.client.Is4() {
			test(t, at, f, protocol)
		}
	})
}

// A packet with a wrong checksum of the IPv4 header has no effect: the stack drops it first of all. It begins no flow,
// to backends of this node and of others, by SNAT and DSR, and gets no answer.
func TestWrongHeaderSumBeginsNoFlow(t *testing.T) {
	w := newScene(t)
	w.eachIPv4(t, func(t *testing.T, at hook, f family, protocol uint8) {
		ports := []uint16{toRemote, toLocal, toEth1, rejected, dropped, noBackends, sticky}
		for _, dsr := range encapsulations {
			ports = append(ports, direct(toRemote, dsr), direct(toLocal, dsr))
		}
		ignored := func(what any, frame []byte) {
			t.Helper()
			for _, by := range spoils() {
				before := w.counts(t)
				w.ignores(t, at, spoil(frame, 14, by))
				before[model.Malformed]++
				if w.counts(t) != before {
					t.Errorf("%v, checksum with other bits %#x: counted %v, want %v", what, by, w.counts(t), before)
				}
			}
		}
		for _, port := range ports {
			question := f.question(protocol, port)
			ignored(port, question.frame(t))
			question.ipOptions = nops
			ignored(fmt.Sprint(port, " with options"), question.frame(t))
			question.ipOptions, question.payload = nil, make([]byte, 64)
			ignored(fmt.Sprint(port, " fragmented"), question.fragments(t, 5, 40)[0])
		}
		ignored("ping", f.ping("abcdefgh").frame(t))
		w.remembersNothing(t)
		if all := w.fragments(t); len(all) > 0 {
			t.Errorf("fragments %v", all)
		}
	})
}

// A word of options counts, too, wherever it is.
func TestWrongHeaderSumOfOptions(t *testing.T) {
	w := newScene(t)
	w.eachIPv4(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for words := 1; words <= 10; words++ {
			question := f.question(protocol, toRemote)
			question.ipOptions = make([]layers.IPv4Option, 4*words)
			for i := range question.ipOptions {
				question.ipOptions[i].OptionType = 1
			}
			frame := question.frame(t)
			for n := range 4 * words {
				damaged := bytes.Clone(frame)
				damaged[34+n] ^= 0x40
				w.ignores(t, at, damaged)
			}
			w.remembersNothing(t)
			w.snatPort(t, at, frame)
			w.forget(t)
		}
	})
}

// Nor does such a packet close a flow, or continue it.
func TestWrongHeaderSumClosesNoFlow(t *testing.T) {
	w := newDSRScene(t)
	w.eachIPv4(t, func(t *testing.T, at hook, f family, protocol uint8) {
		type flow struct {
			name   string
			packet func(flags byte) []byte
			sums   []int // offsets of headers
		}
		var flows []flow
		for _, port := range []uint16{toRemote, toLocal, direct(toRemote, model.IPIP), direct(toRemote, model.Opt)} {
			flows = append(flows, flow{name: fmt.Sprint("to port ", port), packet: func(flags byte) []byte {
				question := f.question(protocol, port)
				question.flags = flags
				return question.frame(t)
			}, sums: []int{14}})
		}
		for _, how := range wrappings {
			flows = append(flows, flow{name: "from a balancer by " + how.name, packet: func(flags byte) []byte {
				question := f.fromBalancer(f.question(protocol, toMany+uint16(how.kind)), on(f.local, targetPort))
				question.flags = flags
				return how.wrap(t, f, question)
			}, sums: map[model.DSR][]int{model.IPIP: {14, 34}, model.Geneve: {14, 34 + 8 + 8 + 4 + 8}, model.Opt: {14}}[how.kind]})
		}
		for _, flow := range flows {
			w.forget(t)
			begin := flow.packet(syn)
			for n, header := range flow.sums {
				reason := []model.Reason{model.Malformed, model.NotService}[n] // the outer header may be for a tunnel of the stack
				before := w.counts(t)
				w.ignores(t, at, spoil(begin, header, 0x0100))
				w.counted(t, before, reason)
			}
			w.remembersNothing(t)
			if got := w.run(t, at, begin); bytes.Equal(got.Frame, begin) {
				t.Fatalf("%s: the first packet passed unchanged: the test is wrong", flow.name)
			}
			want := [2]map[model.Tuple]model.Track{w.records(t, tracks), w.records(t, halfOpen)}
			if len(want[0])+len(want[1]) == 0 {
				t.Fatalf("%s: no conntrack entry: the test is wrong", flow.name)
			}
			for _, flags := range []byte{rst, fin | ack, ack, syn} {
				for _, header := range flow.sums {
					w.ignores(t, at, spoil(flow.packet(flags), header, 0x0001))
				}
			}
			for i, name := range []string{tracks, halfOpen} {
				if err := difference(name, w.records(t, name), want[i]); err != nil {
					t.Errorf("%s: %v", flow.name, err)
				}
			}
		}
	})
}

// Nor does a reply, from another node or when it leaves this one.
func TestWrongHeaderSumOfReply(t *testing.T) {
	w := newScene(t)
	w.eachIPv4(t, func(t *testing.T, at hook, f family, protocol uint8) {
		_, own, backend := w.askRemote(t, at, f, protocol)
		before := w.counts(t)
		w.ignores(t, at, spoil(reply(backend, own, protocol).frame(t), 14, 0x0100))
		w.counted(t, before, model.Malformed)
		question := f.question(protocol, toLocal)
		w.passes(t, at, question.frame(t), question.translated(question.from, on(f.local, targetPort)))
		w.ignores(t, atEgress, spoil(reply(on(f.local, targetPort), question.from, protocol).frame(t), 14, 0x0100))
	})
}

// The checksum of a header that an ICMP error quotes is not verified, as by the stack.
func TestWrongHeaderSumQuoted(t *testing.T) {
	w := newScene(t)
	w.eachIPv4(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question, own, backend := w.askRemote(t, at, f, protocol)
		wrong := func(frame []byte) []byte {
			frame = spoil(frame, 14+20+8, 0x0100)
			frame[36], frame[37] = 0, 0
			binary.BigEndian.PutUint16(frame[36:], checksum(0, frame[34:]))
			return frame
		}
		in := probe{source: nodeBMAC, target: eth0MAC}
		from := errorsOf(f, question.translated(own, backend))[0].frame(t, in, f.remote, f.own)
		to := errorsOf(f, question)[0].frame(t, in.forwarded(at, in.from, in.to, gatewayMAC), f.vip, f.client)
		w.leaves(t, at, wrong(from), model.ActionSend, wrong(to))
	})
}
