// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/packet/model"
)

// A merged packet (GRO, or from a sender on this machine) is encapsulated once. If the device cannot split it,
// the kernel does: each part has the complete encapsulation, with correct lengths and checksums.
func TestDirectMergedPackets(t *testing.T) {
	w := newScene(t)
	w.enter(t)
	w.attachIngressOf(t, "eth1") // with XDP at eth0, no merged packets arrive there
	noChecksums(t, "eth1")
	const segment, segments = 1000, 3
	watch := openCaptureOf(t, int(w.index["eth1-far"]))
	for _, dsr := range encapsulations {
		for _, f := range families {
			for _, protocol := range []uint8{tcp, udp} {
				t.Run(fmt.Sprintf("%s/%s/%d", encapsulationNames[dsr], f.name, protocol), func(t *testing.T) {
					w.enter(t)
					w.forget(t)
					question := f.question(protocol, direct(toEth1, dsr))
					question.source, question.target = nodeCMAC, w.mac["eth1"]
					question.flags, question.payload = ack, nil
					for i := range segment * segments {
						question.payload = append(question.payload, byte(i/segment), byte(i))
					}
					question.payload = question.payload[:segment*segments]
					before := w.counts(t)
					w.sendMerged(t, "eth1-far", question, segment)
					w.comesApart(t, watch, question, dsr, segment)
					if after := w.counts(t); after[model.New] != before[model.New]+1 {
						t.Errorf("%d flows began, want one of one packet", after[model.New]-before[model.New])
					}
				})
			}
		}
	}
}

// sendMerged has a device send a packet to be split into segments with so much payload each, whose checksum is
// yet to be computed (linux/virtio_net.h).
func (w *world) sendMerged(t testing.TB, device string, p probe, segment uint16) {
	t.Helper()
	frame := p.frame(t)
	l4, at, kind := 34, 6, uint8(5) // UDP
	if p.from.Addr().Is6() {
		l4 = 54
	}
	headers := l4 + 8
	if p.protocol == tcp {
		at, kind, headers = 16, 1, l4+20
		if p.from.Addr().Is6() {
			kind = 4
		}
	}
	pseudo := slices.Concat(p.from.Addr().AsSlice(), p.to.Addr().AsSlice(), []byte{0, p.protocol})
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(frame)-l4))
	binary.BigEndian.PutUint16(frame[l4+at:], ^checksum(0, pseudo))
	header := []byte{1, kind} // checksum to be computed
	for _, field := range []uint16{uint16(headers), segment, uint16(l4), uint16(at)} {
		header = binary.LittleEndian.AppendUint16(header, field)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	must(t, unix.Sendto(fd, append(header, frame...), 0, &unix.SockaddrLinklayer{Ifindex: int(w.index[device]), Protocol: htons(uint16(frame[12])<<8 | uint16(frame[13]))}))
}

// comesApart waits for the packets that a merged one was split into, and joins their payload.
func (w *world) comesApart(t testing.TB, c capture, p probe, dsr model.DSR, segment int) {
	t.Helper()
	var payload []byte
	for end := time.Now().Add(time.Minute); len(payload) < len(p.payload) && time.Now().Before(end); {
		b := make([]byte, 1<<16)
		n, err := c.next(b)
		if err != nil {
			t.Fatalf("waiting for packets: %d bytes of %d have arrived: %v", len(payload), len(p.payload), err)
		}
		if n < 14 || !bytes.Equal(b[:6], nodeCMAC[:]) {
			continue
		}
		part := unwrapped(t, b[:n], p, dsr)
		if len(part) > segment {
			t.Fatalf("a packet has %d bytes of payload, want %d", len(part), segment)
		}
		payload = append(payload, part...)
	}
	if !bytes.Equal(payload, p.payload) {
		t.Errorf("%d bytes arrived as %d others", len(p.payload), len(payload))
	}
}

// unwrapped is the payload of the packet inside a frame, all of which must be correct.
func unwrapped(t testing.TB, frame []byte, p probe, dsr model.DSR) []byte {
	t.Helper()
	decoded := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if failed := decoded.ErrorLayer(); failed != nil {
		t.Fatalf("%v: % x", failed.Error(), frame)
	}
	var names []string
	var ends gopacket.NetworkLayer
	for _, layer := range decoded.Layers() {
		names = append(names, layer.LayerType().String())
		switch l := layer.(type) {
		case *layers.IPv4:
			ends = l
			if checksum(0, l.Contents) != 0 || int(l.Length) != len(l.Contents)+len(l.Payload) {
				t.Errorf("the header % x has a wrong checksum or length: %d bytes follow", l.Contents, len(l.Payload))
			}
		case *layers.IPv6:
			ends = l
			if int(l.Length) != len(l.Payload) {
				t.Errorf("the header % x has a wrong length: %d bytes follow", l.Contents, len(l.Payload))
			}
		}
	}
	ip := map[bool]string{true: "IPv4", false: "IPv6"}[p.from.Addr().Is4()]
	want := map[model.DSR][]string{model.IPIP: {ip, ip}, model.Geneve: {ip, "UDP", "Geneve", ip}, model.Opt: {ip}}[dsr]
	if dsr == model.Opt && ip == "IPv6" {
		want = append(want, "IPv6Destination")
	}
	if want = append([]string{"Ethernet"}, want...); len(names) < len(want) || !slices.Equal(names[:len(want)], want) {
		t.Fatalf("a packet has the layers %v, want %v", names, want)
	}
	to := p.to.Addr()
	if dsr == model.Opt {
		to = families[map[string]int{"IPv4": 0, "IPv6": 1}[ip]].behindEth1
	}
	if !bytes.Equal(ends.NetworkFlow().Src().Raw(), p.from.Addr().AsSlice()) || !bytes.Equal(ends.NetworkFlow().Dst().Raw(), to.AsSlice()) {
		t.Errorf("a packet has the addresses %v, want %v to %v", ends.NetworkFlow(), p.from.Addr(), to)
	}
	all := decoded.Layers()
	transport := slices.IndexFunc(all[len(want):], func(l gopacket.Layer) bool {
		return l.LayerType() == layers.LayerTypeTCP || l.LayerType() == layers.LayerTypeUDP
	}) + len(want)
	l4 := slices.Concat(all[transport].LayerContents(), all[transport].LayerPayload())
	pseudo := slices.Concat(p.from.Addr().AsSlice(), to.AsSlice(), []byte{0, p.protocol, byte(len(l4) >> 8), byte(len(l4))}, l4)
	if sum := checksum(0, pseudo); sum != 0 {
		t.Errorf("an inner packet's checksum is wrong by %#x: % x", sum, frame)
	}
	return all[transport].LayerPayload()
}
