// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/packet/model"
)

// The kernel takes a VLAN tag from a frame before tc sees it: the frame is another
// network's all the same, and looks like one of ours.
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

// send puts a frame on the wire.
func (c capture) send(t testing.TB, frame []byte) {
	t.Helper()
	end, err := deviceIndex("eth0-far")
	must(t, err)
	must(t, unix.Sendto(int(c), frame, 0, &unix.SockaddrLinklayer{Ifindex: end, Halen: 6}))
}
