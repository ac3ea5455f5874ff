// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/packet/model"
)

// The kernel removes a VLAN tag before tc sees the frame, which still belongs to another network, but looks
// like one of ours.
func TestVLANTagTakenByKernel(t *testing.T) {
	w := newScene(t)
	w.attachIngress(t)
	far := w.newClient(t)
	far.enter(t)
	wire := openCapture(t)
	for _, f := range families {
		question := f.question(udp, toRemote)
		frame := question.frame(t)
		tagged := slices.Concat(frame[:12], []byte{0x81, 0, 0, 100}, frame[12:])
		wire.send(t, tagged)
		question.from = on(f.client, clientPort+1)
		wire.send(t, question.frame(t))
		flow := model.Tuple{Source: f.client, Destination: f.vip, SourcePort: clientPort, DestinationPort: toRemote, Protocol: udp}
		later := flow
		later.SourcePort++
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			records := w.records(t, halfOpen)
			if _, ok := records[later]; !ok && time.Now().Before(end) {
				continue
			} else if !ok {
				t.Fatalf("the frame without a tag began no flow: %v", records)
			}
			if _, ok := records[flow]; ok {
				t.Errorf("the frame with a tag began a flow")
			}
			break
		}
	}
}

// A tag with VID 0 names no network, only a priority (IEEE 802.1Q): such a frame is handled like one without a
// tag, and leaves without one. XDP leaves it to tc.
func TestPriorityTag(t *testing.T) {
	w := newScene(t)
	w.attachIngress(t)
	far := w.newClient(t)
	tagged := func(frame []byte) []byte { return slices.Concat(frame[:12], []byte{0x81, 0, 0xa0, 0}, frame[12:]) }
	for _, f := range families {
		direct4 := func(dsr model.DSR) []byte { return f.question(udp, direct(toRemote, dsr)).frame(t) }
		far.enter(t)
		wire := openCapture(t)
		must(t, unix.SetsockoptInt(int(wire), unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
		for name, frame := range map[string][]byte{
			"TCP": f.question(tcp, toRemote).frame(t), "UDP": f.question(udp, toRemote).frame(t),
			"refused TCP": f.question(tcp, rejected).frame(t), "refused UDP": f.question(udp, rejected).frame(t),
			"ping": f.ping("payload").frame(t), "IPIP": direct4(model.IPIP), "Geneve": direct4(model.Geneve), "option": direct4(model.Opt),
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				far.enter(t)
				wire.send(t, frame)
				want := wire.comes(t, f)
				wire.send(t, tagged(frame))
				if got := wire.comes(t, f); !slices.Equal(withoutID(got)[12:], withoutID(want)[12:]) {
					t.Errorf("with a tag it became\n%swant\n%s", hex.Dump(got), hex.Dump(want))
				}
				w.enter(t)
				before := w.counts(t)
				w.ignores(t, atXDP, tagged(frame))
				w.counted(t, before, model.ToTC)
			})
		}
	}
}

// comes waits for the result of the client's packet; it has no tag.
func (c capture) comes(t testing.TB, f family) []byte {
	t.Helper()
	frame, control := make([]byte, 2000), make([]byte, 256)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		n, more, _, from, err := unix.Recvmsg(int(c), frame, control, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			time.Sleep(time.Millisecond)
			continue
		}
		must(t, err)
		source, destination := 26, 30
		if f.client.Is6() {
			source, destination = 22, 38
		}
		size := len(f.client.AsSlice())
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING || n < destination+size {
			continue
		}
		to := frame[destination : destination+size]
		if !slices.Equal(to, f.remote.AsSlice()) && !slices.Equal(to, f.node.AsSlice()) && !slices.Equal(frame[source:source+size], f.vip.AsSlice()) {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:more])
		must(t, err)
		for _, m := range messages { // struct tpacket_auxdata: tp_status
			if m.Header.Level == unix.SOL_PACKET && binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				t.Errorf("it left with a tag")
			}
		}
		return frame[:n]
	}
	t.Fatal("no packet arrived")
	return nil
}

// send puts a frame on the wire.
func (c capture) send(t testing.TB, frame []byte) {
	t.Helper()
	end, err := deviceIndex("eth0-far")
	must(t, err)
	must(t, unix.Sendto(int(c), frame, 0, &unix.SockaddrLinklayer{Ifindex: end, Halen: 6}))
}
