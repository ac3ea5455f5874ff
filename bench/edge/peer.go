// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
)

// A Peer is another balancer's program, loaded and with maps filled by the user, and the packet with which it
// is timed.
type Peer struct {
	Name     string
	flag     string // as given
	id       ebpf.ProgramID
	program  *ebpf.Program
	template template
	hook     string
}

const peerSyntax = "name=ID,packet=FILE, as in katran=123,packet=syn.hex: the ID that `bpftool prog` shows, and a file with an Ethernet frame, raw or as hexadecimal digits"

// Of a peer's packet: the maximum for a common MTU, and at least an Ethernet header.
const (
	peerPacketMost  = 1514
	peerPacketLeast = testrun.EthernetLength
)

// OpenPeers opens the programs of all --peer flags and reads their packets.
func OpenPeers(flags []string) (peers []*Peer, err error) {
	defer func() {
		if err != nil {
			ClosePeers(peers)
			peers = nil
		}
	}()
	for _, flag := range flags {
		p, err := parsePeer(flag)
		if err != nil {
			return peers, fmt.Errorf("--peer %s: %w", flag, err)
		}
		for _, other := range peers {
			if other.Name == p.Name {
				return peers, fmt.Errorf("--peer %s: there is another peer %q: give each a name of its own", flag, p.Name)
			}
		}
		if err := p.open(); err != nil {
			return peers, fmt.Errorf("--peer %s: %w", flag, err)
		}
		peers = append(peers, p)
	}
	return peers, nil
}

// ClosePeers closes the programs of peers.
func ClosePeers(peers []*Peer) {
	for _, p := range peers {
		p.program.Close()
	}
}

func parsePeer(flag string) (*Peer, error) {
	first, second, _ := strings.Cut(flag, ",")
	name, id, _ := strings.Cut(first, "=")
	file, found := strings.CutPrefix(second, "packet=")
	if name == "" || id == "" || !found || file == "" {
		return nil, errors.New("want " + peerSyntax)
	}
	if name == harness.SideBeeline || name == sideMinimal {
		return nil, fmt.Errorf("%q is a side of its own: give the peer another name", name)
	}
	number, err := strconv.ParseUint(id, 10, 32)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("%q is no ID of a program: want %s", id, peerSyntax)
	}
	p := &Peer{Name: name, flag: flag, id: ebpf.ProgramID(number)}
	packet, err := readPacket(file)
	if err != nil {
		return nil, err
	}
	if p.template, err = parseTemplate(packet); err != nil {
		return nil, fmt.Errorf("packet: %s: %w: flows differ in the source of TCP or UDP, so give such a packet", file, err)
	}
	return p, nil
}

var spaces = regexp.MustCompile(`\s+`)

// readPacket reads a frame, raw or as hexadecimal digits with any white space.
func readPacket(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("packet: %w", err)
	}
	packet := text
	if digits, err := hex.DecodeString(spaces.ReplaceAllString(string(text), "")); err == nil {
		packet = digits
	}
	if len(packet) < peerPacketLeast || len(packet) > peerPacketMost {
		return nil, fmt.Errorf("packet: %s has %d bytes: an Ethernet frame has %d to %d and starts with the destination's address",
			path, len(packet), peerPacketLeast, peerPacketMost)
	}
	return packet, nil
}

func (p *Peer) open() (err error) {
	if p.program, err = ebpf.NewProgramFromID(p.id); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("no program with ID %d is loaded: `bpftool prog` lists them", p.id)
		}
		return fmt.Errorf("program %d: %w", p.id, err)
	}
	switch kind := p.program.Type(); kind {
	case ebpf.XDP:
		p.hook = hookXDP
	case ebpf.SchedCLS:
		p.hook = hookTC
	case ebpf.Extension:
		err = fmt.Errorf("program %d is part of a dispatcher (type %s), which cannot be called alone: give the dispatcher's ID, or load the program without one", p.id, kind)
	default:
		err = fmt.Errorf("program %d is of type %s: this part has packets only for XDP and tc (sched_cls)", p.id, kind)
	}
	if err == nil {
		var d *driver
		if d, err = driverOf(p, 1); err == nil { // it can be called
			d.collection.Close()
			return nil
		}
	}
	p.program.Close()
	return err
}

var (
	verdictsXDP = []string{"XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"}
	verdictsTC  = []string{"TC_ACT_OK", "TC_ACT_RECLASSIFY", "TC_ACT_SHOT", "TC_ACT_PIPE", "TC_ACT_STOLEN", "TC_ACT_QUEUED", "TC_ACT_REPEAT", "TC_ACT_REDIRECT", "TC_ACT_TRAP"}
)

// verdictName is the name of a verdict in linux/bpf.h or linux/pkt_cls.h.
func verdictName(hook string, verdict uint32) string {
	names := verdictsXDP
	if hook == hookTC {
		if names = verdictsTC; verdict == ^uint32(0) {
			return "TC_ACT_UNSPEC"
		}
	}
	if int(verdict) < len(names) {
		return names[verdict]
	}
	return fmt.Sprintf("verdict %#x", verdict)
}

// A template is a packet from which flows are made, with other addresses and ports.
type template struct {
	bytes    []byte
	is4      bool
	protocol uint8
	l4       int // offset of layer 4
	source   netip.AddrPort
	asked    netip.AddrPort
}

// parseTemplate finds a packet's source. All headers must fit into a frame, because only that is rewritten for
// each flow.
func parseTemplate(packet []byte) (t template, err error) {
	t.bytes = packet
	ip := packet[testrun.EthernetLength:]
	length := 40
	switch kind := binary.BigEndian.Uint16(packet[12:]); {
	case kind == unix.ETH_P_IP && len(ip) >= 20 && ip[0]>>4 == 4:
		t.is4, t.protocol, length = true, ip[9], int(ip[0]&15)*4
		if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return t, errors.New("the packet is a fragment")
		}
	case kind == unix.ETH_P_IPV6 && len(ip) >= 40 && ip[0]>>4 == 6:
		t.protocol = ip[6]
	default:
		return t, fmt.Errorf("no packet of IPv4 or IPv6 directly after the Ethernet header (type %#04x)", kind)
	}
	t.l4 = testrun.EthernetLength + length
	header := map[uint8]int{unix.IPPROTO_TCP: 20, unix.IPPROTO_UDP: 8}[t.protocol]
	if header == 0 {
		return t, fmt.Errorf("the protocol in it is %d, neither TCP nor UDP", t.protocol)
	}
	if length < 20 || t.l4+header > min(len(packet), len(testrun.Frame{})) {
		return t, fmt.Errorf("its headers do not end within %d bytes", min(len(packet), len(testrun.Frame{})))
	}
	address := func(at int) netip.Addr {
		if t.is4 {
			return netip.AddrFrom4([4]byte(ip[12+at*4:]))
		}
		return netip.AddrFrom16([16]byte(ip[8+at*16:]))
	}
	t.source = netip.AddrPortFrom(address(0), binary.BigEndian.Uint16(packet[t.l4:]))
	t.asked = netip.AddrPortFrom(address(1), binary.BigEndian.Uint16(packet[t.l4+2:]))
	return t, nil
}

// The ports of flows, from firstFlowPort on; after the last one the address changes.
const (
	firstFlowPort = 1024
	flowPorts     = 1<<16 - firstFlowPort
)

// flow is the packet of the n-th flow; the first is the packet itself. Checksums are updated by the difference:
// correct ones stay correct (RFC 1624).
func (t template) flow(n uint32) []byte {
	packet := make([]byte, max(len(t.bytes), len(testrun.Frame{})))
	copy(packet, t.bytes)
	if n == 0 {
		return packet
	}
	port := t.source.Port()
	at := n
	if port >= firstFlowPort {
		at += uint32(port - firstFlowPort)
	} else {
		at-- // the first port of all others
	}
	to := netip.AddrPortFrom(harness.Plus(t.source.Addr(), int(at/flowPorts)), uint16(firstFlowPort+at%flowPorts))

	begin, end := testrun.EthernetLength+8, testrun.EthernetLength+24
	if t.is4 {
		begin, end = testrun.EthernetLength+12, testrun.EthernetLength+16
	}
	before := testrun.Sum(packet[begin:end], 0)
	copy(packet[begin:end], to.Addr().AsSlice())
	after := testrun.Sum(packet[begin:end], 0)
	if t.is4 {
		changeChecksum(packet[testrun.EthernetLength+10:], before, after)
	}
	binary.BigEndian.PutUint16(packet[t.l4:], to.Port())
	check := packet[t.l4+16:]
	if t.protocol == unix.IPPROTO_UDP {
		check = packet[t.l4+6:]
		if binary.BigEndian.Uint16(check) == 0 { // no checksum
			return packet
		}
	}
	changeChecksum(check, before, after)
	changeChecksum(check, port, to.Port())
	return packet
}

// changeChecksum updates a checksum after a sum of words has changed.
func changeChecksum(at []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(at)) + uint32(^before) + uint32(after)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(at, ^uint16(sum))
}
