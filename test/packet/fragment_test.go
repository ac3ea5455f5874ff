// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/packet/model"
)

// withFlags is an IPv4 frame with other flags.
func withFlags(frame []byte, flags byte) []byte {
	frame = slices.Clone(frame)
	frame[14+6] = frame[14+6]&0x1f | flags
	frame[14+10], frame[14+11] = 0, 0
	binary.BigEndian.PutUint16(frame[14+10:], checksum(0, frame[14:14+20]))
	return frame
}

// big is a packet of n bytes, from the IP header on, with a payload that varies.
func (p probe) big(t testing.TB, n int) probe {
	t.Helper()
	p = p.sized(t, n)
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range p.payload {
		p.payload[i] = byte(random.Uint32())
	}
	return p
}

// cut has tc fragment a frame, and returns the fragments in order.
func (w *world) cut(t testing.TB, frame []byte) (pieces [][]byte) {
	t.Helper()
	watch := openCaptureOf(t, int(w.index["eth0"]))
	before := w.counts(t)
	got := w.run(t, atIngress, frame)
	if got.Action != model.ActionSend {
		t.Fatalf("a packet to be fragmented: action %v, want 2 (sent)", got.Action)
	}
	w.counted(t, before, model.Fragmented)
	last := slices.Clone(got.Frame)
	for end := 0; end < int(offset(last)); {
		b := make([]byte, 1<<16)
		n, err := watch.next(b)
		if err != nil {
			t.Fatalf("waiting for the fragment at %d: %v", end, err)
		}
		if n < 14+20 || !bytes.Equal(b[12:14], []byte{8, 0}) || !bytes.Equal(b[18:20], frame[18:20]) || !bytes.Equal(b[26:34], frame[26:34]) {
			continue // sent by the kernel itself
		}
		if len(pieces) == 0 {
			end = int(offset(b))
		}
		if int(offset(b)) != end {
			t.Fatalf("a fragment begins at %d, want %d", offset(b), end)
		}
		pieces = append(pieces, b[:n])
		end += length(b) - 20
	}
	return append(pieces, last)
}

// offset is where a fragment begins, in bytes; length is what its header says.
func offset(frame []byte) uint16 { return binary.BigEndian.Uint16(frame[20:]) << 3 }
func length(frame []byte) int    { return int(binary.BigEndian.Uint16(frame[16:])) }
func more(frame []byte) bool     { return frame[20]&0x20 != 0 }

// whole reassembles a datagram from frames in order, and returns it as one frame with the IP header of the
// whole. Each frame must fit the small MTU and end where its header says.
func whole(t testing.TB, frames [][]byte) []byte {
	t.Helper()
	all := slices.Clone(frames[0][:34])
	for i, b := range frames {
		if len(b) > 14+narrowMTU || len(b) != 14+length(b) {
			t.Fatalf("fragment %d: a packet of %[3]d bytes in a frame of %[2]d", i, len(b)-14, length(b))
		}
		if checksum(0, b[14:34]) != 0 {
			t.Fatalf("fragment %d: the header's checksum is wrong", i)
		}
		if int(offset(b)) != len(all)-34 || more(b) != (i < len(frames)-1) {
			t.Fatalf("fragment %d: offset %d, want %d; more fragments: %v", i, offset(b), len(all)-34, more(b))
		}
		all = append(all, b[34:]...)
	}
	binary.BigEndian.PutUint16(all[16:], uint16(len(all)-14))
	return withFlags(append(all[:20], append([]byte{0, 0}, all[22:]...)...), 0)
}

// through runs fragments, each of which must be sent, and returns what they became.
func (w *world) through(t testing.TB, pieces [][]byte) (sent [][]byte) {
	t.Helper()
	for i, piece := range pieces {
		got := w.run(t, atIngress, piece)
		if got.Action != model.ActionSend {
			t.Fatalf("fragment %d: action %v, want 2 (sent)", i, got.Action)
		}
		frame := slices.Clone(got.Frame)
		if w.nextHop(frame) {
			copy(frame[:12], piece) // `met` checks the MAC addresses
		}
		sent = append(sent, frame)
	}
	return sent
}

// RFC 791 section 3.2: packets that may be fragmented are, on their way to the backend and back. Reassembled
// they are what the whole packet would have become, also if its sender left UDP's checksum to the device. XDP
// leaves them to tc, unchanged.
func TestFragmented(t *testing.T) {
	w := newScene(t)
	f := families[0]
	for _, protocol := range []uint8{tcp, udp, sctp} {
		for _, size := range []int{narrowMTU + 1, 1500, 2*narrowMTU - 24, 2*narrowMTU - 23, 3400} {
			for _, noChecksum := range []bool{false, true} {
				if noChecksum && protocol != udp {
					continue
				}
				t.Run(fmt.Sprintf("%d/%d/%v", protocol, size, noChecksum), func(t *testing.T) {
					w.enter(t)
					w.forget(t)
					question := f.question(protocol, toNarrow)
					if protocol == sctp {
						question = f.association(sctpNarrow).with(sctpData, "")
						size = size &^ 3
						if size <= narrowMTU {
							size += 4
						}
					}
					question.from, question.flags = on(f.narrowClient, question.from.Port()), ack
					question.noChecksum = noChecksum
					question = question.big(t, size)
					before := w.counts(t)
					w.ignores(t, atXDP, question.frame(t))
					w.counted(t, before, model.ToTC)
					w.remembersNothing(t)

					sent := w.through(t, w.cut(t, question.frame(t)))
					backend := on(f.narrow, question.to.Port())
					own := on(f.own, question.from.Port())
					if protocol != sctp {
						backend = on(f.narrow, targetPort)
						own = on(f.own, binary.BigEndian.Uint16(sent[0][34:]))
					}
					if got, want := whole(t, sent), question.forwarded(atIngress, own, backend, nodeBMAC).frame(t); !w.sent(got, want) {
						t.Fatalf("the question became\n%x\nwant\n%x", got, want)
					}
					answer := reply(backend, own, protocol)
					answer.noChecksum, answer.chunk = noChecksum, sctpData
					answer = answer.big(t, size)
					sent = w.through(t, w.cut(t, answer.frame(t)))
					if got, want := whole(t, sent), answer.forwarded(atIngress, question.to, question.from, gatewayMAC).frame(t); !w.sent(got, want) {
						t.Fatalf("the answer became\n%x\nwant\n%x", got, want)
					}
					records := w.records(t, halfOpen)
					for key, track := range w.records(t, tracks) {
						records[key] = track
					}
					if len(records) != 2 {
						t.Errorf("conntrack entries %v, want those of one flow", records)
					}
					for key, track := range records {
						if int(track.Packets) != len(sent) || int(track.Bytes) != size+20*(len(sent)-1) {
							t.Errorf("%v counts %d packets of %d bytes, want the %d fragments", key, track.Packets, track.Bytes, len(sent))
						}
					}
				})
			}
		}
	}
}

// Fragments that are still too big are fragmented again; the last part of one that is not the last fragment has
// "more fragments" set.
func TestFragmentsFragmented(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	f := families[0]
	question := f.question(udp, toNarrow).big(t, 8000)
	var sent [][]byte
	for i, part := range question.fragments(t, 0x1234, 1480) {
		pieces := [][]byte{part}
		if len(part) > 14+narrowMTU {
			if pieces = w.cut(t, part); len(pieces) != 2 {
				t.Fatalf("fragment %d became %d fragments, want 2", i, len(pieces))
			}
		}
		sent = append(sent, w.through(t, pieces)...)
	}
	own := on(f.own, binary.BigEndian.Uint16(sent[0][34:]))
	if got, want := whole(t, sent), question.forwarded(atIngress, own, on(f.narrow, targetPort), nodeBMAC).frame(t); !bytes.Equal(got, want) {
		t.Fatalf("the datagram became\n%x\nwant\n%x", got, want)
	}
}

// Not fragmented: packets with options, packets that would end beyond the greatest length, and those of SCTP whose CRC
// is left to a device.
func TestNotFragmented(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	f := families[0]
	question := f.question(udp, toNarrow).big(t, 1500)
	options := question
	options.ipOptions = nops
	long := question.fragments(t, 7, 8)[0]
	w.snatPort(t, atIngress, long)
	long = append(slices.Clone(long[:34]), make([]byte, 1480)...)
	binary.BigEndian.PutUint16(long[16:], 1500)
	long[20], long[21] = 0x1f, 0xff
	unsummed := f.association(sctpNarrow).with(sctpData, string(make([]byte, 1450))).frame(t)
	copy(unsummed[34+8:], make([]byte, 4))
	for name, frame := range map[string][]byte{"options": options.frame(t), "long": withFlags(long, 0), "SCTP": unsummed} {
		t.Run(name, func(t *testing.T) {
			w.enter(t)
			w.drops(t, atIngress, frame, model.DropTooBig)
		})
	}
}

// A checksum that a sender on this machine left to the device is computed before the packet is fragmented: the
// device would compute it for the first fragment only.
func TestFragmentedWithChecksumLeftToDevice(t *testing.T) {
	w := newScene(t)
	w.attachIngress(t)
	noChecksums(t, "eth0")
	far := w.newClient(t)
	far.enter(t)
	watch := openCapture(t)
	f := families[0]
	for _, size := range []int{1401, 2000, 5000} {
		payload := bytes.Repeat([]byte{1, 2, 3, 5, 7, 11, 13}, size)[:size]
		w.sendFragmentable(t, f, payload)
		segment := watch.reassembled(t, f)
		pseudo := slices.Concat(f.own.AsSlice(), f.narrow.AsSlice(), []byte{0, udp, byte(len(segment) >> 8), byte(len(segment))})
		if sum := checksum(0, slices.Concat(pseudo, segment)); sum != 0 {
			t.Errorf("%d bytes arrived with a checksum that is wrong by %#x", size, sum)
		}
		if !bytes.Equal(segment[8:], payload) {
			t.Errorf("%d bytes arrived as %d others", size, len(segment)-8)
		}
	}
}

// sendFragmentable sends a datagram without "don't fragment" to the port of the Service whose backend is behind
// a small MTU.
func (w *world) sendFragmentable(t testing.TB, f family, payload []byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT))
	must(t, unix.Sendto(fd, payload, 0, &unix.SockaddrInet4{Port: toNarrow, Addr: f.vip.As4()}))
}

// reassembled waits for a datagram to the backend behind the small MTU.
func (c capture) reassembled(t testing.TB, f family) []byte {
	t.Helper()
	var frames [][]byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		b := make([]byte, 1<<14)
		n, err := c.next(b)
		if err != nil {
			t.Fatalf("waiting for a packet to %v: %v", f.narrow, err)
		}
		if n < 34 || !bytes.Equal(b[12:14], []byte{8, 0}) || !bytes.Equal(b[30:34], f.narrow.AsSlice()) {
			continue
		}
		if frames = append(frames, b[:n]); !more(b) {
			return whole(t, frames)[34:]
		}
	}
	t.Fatalf("no datagram to %v; fragments: %d", f.narrow, len(frames))
	return nil
}
