// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

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
