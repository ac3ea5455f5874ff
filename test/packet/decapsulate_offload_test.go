// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/packet/model"
)

// A device may have computed an encapsulated packet's sum (CHECKSUM_COMPLETE): it stays correct when the outer
// header is removed.
func TestEncapsulatedChecksumMadeByDevice(t *testing.T) {
	w := newDSRScene(t)
	needs.Kernel(t, needs.SummedTestRuns)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		if at != atIngress {
			return // XDP has no such sum
		}
		sum := func(frame []byte) {
			t.Helper()
			got := w.runWith(t, at, frame, bpfTestChecksumComplete, 0)
			if got.Action != model.ActionPass || len(got.Frame) >= len(frame) {
				t.Errorf("action %v and %d bytes, want 0 (passed) and less than %d", got.Action, len(got.Frame), len(frame))
			}
		}
		question.payload, question.ecn = make([]byte, 75), 0
		sum(how.wrap(t, f, question))
		question.backend = on(f.local.Next(), targetPort) // the flow keeps the other: its destination changes
		sum(how.wrap(t, f, question))
		if how.kind == model.Opt {
			return
		}
		question.ecn = 3
		question.inner = withECN(f, question.probe.frame(t), 2)[14:]
		sum(how.wrap(t, f, question))
	})
}

// Merged packets (GSO, as from a container of the same machine, or GRO) are decapsulated as one, and no byte is
// lost.
func TestMergedEncapsulatedPackets(t *testing.T) {
	const segment, segments = 1000, 8
	w := newDSRScene(t)
	w.localPods(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.enter(t)
			w.forget(t)
			in := w.encapsulatingPair(t, f)
			watch := openCaptureOf(t, int(w.index["pods"]))
			question := f.question(tcp, toMany+uint16(model.IPIP))
			question.flags, question.dontFragment, question.payload = ack, true, make([]byte, segment*segments)
			for i := range question.payload {
				question.payload[i] = byte(i / 7)
			}
			sendMerged(t, in, question.frame(t), segment)
			got, largest := watch.stream(t, f, len(question.payload))
			if !bytes.Equal(got, question.payload) {
				t.Errorf("%d bytes arrived, which are not the %d that were sent", len(got), len(question.payload))
			}
			if largest != len(question.payload) {
				t.Errorf("the longest packet has %d bytes of payload, want %d: merged as it was", largest, len(question.payload))
			}
			w.dsrRecords(t, 2)
		})
	}
}

// encapsulatingPair is a device of the node that has the edge at its ingress, and whose far end,
// which is returned, puts each packet in another one from node-b to the local backend.
func (w *world) encapsulatingPair(t testing.TB, f family) (far int) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "in" + f.name, HardwareAddr: eth0MAC[:], MTU: 9000}, PeerName: "far" + f.name}))
	for _, end := range []string{"in", "far"} {
		link, err := netlink.LinkByName(end + f.name)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
		far = link.Attrs().Index
		if end == "in" {
			w.attach(t, far, netlink.HANDLE_MIN_INGRESS, w.ingress)
		} else {
			w.attach(t, far, netlink.HANDLE_MIN_EGRESS, encapsulator(t, f))
		}
	}
	must(t, running("far"+f.name))
	return far
}

// encapsulator is a program that puts a header before merged packets.
func encapsulator(t testing.TB, f family) *ebpf.Program {
	t.Helper()
	const layerMAC, fixedGSO, encapsulatedV4, encapsulatedV6 = 1, 1, 2, 4
	outer, flags := []byte{4<<4 | 5, 0, 0, 0, 0, 0, 0x40, 0, 64, 4, 0, 0}, int64(fixedGSO|encapsulatedV4)
	length := 20 + 20 + 20 + 8000
	if f.client.Is6() {
		outer, flags = []byte{6 << 4, 0, 0, 0, 0, 0, 41, 64}, fixedGSO|encapsulatedV6
		length = 40 + 20 + 8000
		binary.BigEndian.PutUint16(outer[4:], uint16(length))
	} else {
		binary.BigEndian.PutUint16(outer[2:], uint16(length))
	}
	outer = slices.Concat(outer, f.balancer().AsSlice(), f.local.AsSlice())
	if f.client.Is4() {
		binary.BigEndian.PutUint16(outer[10:], checksum(0, outer))
	}
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // struct __sk_buff: len
		asm.JLT.Imm(asm.R2, 8000, "pass"),
		asm.Mov.Imm(asm.R2, int32(len(outer))), asm.Mov.Imm(asm.R3, layerMAC), asm.LoadImm(asm.R4, flags, asm.DWord),
		asm.FnSkbAdjustRoom.Call(), asm.JNE.Imm(asm.R0, 0, "drop")}
	for at := 0; at < len(outer); at += 4 {
		code = append(code, asm.StoreImm(asm.RFP, int16(at-len(outer)), int64(int32(binary.LittleEndian.Uint32(outer[at:]))), asm.Word))
	}
	code = append(code, asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 14), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, int32(-len(outer))),
		asm.Mov.Imm(asm.R4, int32(len(outer))), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(), asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"), asm.Return(),
		asm.Mov.Imm(asm.R0, tcShot).WithSymbol("drop"), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	must(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

// localPods puts the local backends behind a device of their own.
func (w *world) localPods(t testing.TB) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pods", MTU: 9000}, PeerName: "pods-far"}))
	for _, end := range []string{"pods-far", "pods"} {
		link, err := netlink.LinkByName(end)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
		w.index[end] = uint32(link.Attrs().Index)
	}
	must(t, running("pods"))
	for _, f := range families {
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: int(w.index["pods"]), Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: f.local.AsSlice(), Mask: net.CIDRMask(f.local.BitLen(), f.local.BitLen())}}))
		must(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: int(w.index["pods"]), State: netlink.NUD_PERMANENT,
			IP: f.local.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 2, 1}}))
	}
}

// sendMerged has a device send a merged TCP packet whose checksums are yet to be computed.
func sendMerged(t testing.TB, device int, frame []byte, segment uint16) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	const needsChecksum, gsoTCPv4, gsoTCPv6 = 1, 1, 4
	l4, kind := 34, byte(gsoTCPv4)
	if frame[12] == 0x86 {
		l4, kind = 54, gsoTCPv6
	}
	leaveSum(frame)
	// struct virtio_net_hdr: flags, type, length of the headers, segment, where the checksum begins and
	// where it is.
	header := binary.NativeEndian.AppendUint16([]byte{needsChecksum, kind}, uint16(l4+20))
	header = binary.NativeEndian.AppendUint16(header, segment)
	header = binary.NativeEndian.AppendUint16(header, uint16(l4))
	header = binary.NativeEndian.AppendUint16(header, 16)
	must(t, unix.Sendto(fd, append(header, frame...), 0, &unix.SockaddrLinklayer{Ifindex: device}))
}

// stream is what the local backend receives by TCP, in order of sequence numbers, up to a length, and the
// longest packet's payload.
func (c capture) stream(t testing.TB, f family, length int) (bytes []byte, largest int) {
	t.Helper()
	parts := map[uint32][]byte{}
	total := 0
	frame := make([]byte, 1<<16)
	for end := time.Now().Add(time.Minute); total < length && time.Now().Before(end); {
		n, err := c.next(frame)
		if err != nil {
			t.Fatalf("waiting for packets to %v: %v; %d bytes have arrived", f.local, err, total)
		}
		to, l4 := 30, 34
		if f.client.Is6() {
			to, l4 = 38, 54
		}
		if n < l4+20 || !slices.Equal(frame[to:to+len(f.local.AsSlice())], f.local.AsSlice()) || frame[l4-20+9] != tcp && f.client.Is4() {
			continue
		}
		payload := slices.Clone(frame[l4+int(frame[l4+12]>>4)*4 : n])
		parts[binary.BigEndian.Uint32(frame[l4+4:])] = payload
		total += len(payload)
		largest = max(largest, len(payload))
	}
	first := f.question(tcp, toMany).seq
	for at := first; ; {
		part, ok := parts[at]
		if !ok {
			return bytes, largest
		}
		bytes = append(bytes, part...)
		at += uint32(len(part))
	}
}
