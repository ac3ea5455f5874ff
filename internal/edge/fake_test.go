// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
)

// kernel is a datapath that remembers what is attached where.
type kernel struct {
	hooks   map[int][]datapath.EdgeHook
	xdp     map[int]datapath.XDPMode
	refuse  map[int]error // XDP
	table   hash
	flows   *datapath.Flows
	attach  int // calls
	waited  func()
	door    *datapath.Door
	tcError error
}

func newKernel() *kernel {
	k := &kernel{
		hooks: map[int][]datapath.EdgeHook{}, xdp: map[int]datapath.XDPMode{}, refuse: map[int]error{}, table: hash{},
		flows:  &datapath.Flows{Tracks: flowTable{}, HalfOpen: flowTable{}},
		waited: func() {},
	}
	k.door = datapath.NewDoor(new(datapath.EdgeTCDoor), k.WaitForReaders)
	return k
}

func (k *kernel) AttachEdgeTC(device int) error {
	k.attach++
	if k.tcError != nil {
		return k.tcError
	}
	for _, h := range []datapath.EdgeHook{datapath.EdgeEgress, datapath.EdgeIngress} {
		if !slices.Contains(k.hooks[device], h) {
			k.hooks[device] = append(k.hooks[device], h)
		}
	}
	return nil
}

func (k *kernel) AttachEdgeXDP(device int, mode datapath.XDPMode) ([]datapath.ChainProgram, error) {
	err := k.refuse[device]
	if err != nil && !errors.As(err, new(*datapath.AloneError)) {
		return nil, err
	}
	k.hooks[device], k.xdp[device] = append(k.hooks[device], datapath.EdgeXDP), mode
	return nil, err
}

func (k *kernel) DetachEdge(device int, hooks ...datapath.EdgeHook) error {
	k.hooks[device] = slices.DeleteFunc(k.hooks[device], func(h datapath.EdgeHook) bool {
		return len(hooks) == 0 || slices.Contains(hooks, h)
	})
	return nil
}

func (k *kernel) EdgeAttachments() (all []datapath.EdgeAttachment, _ error) {
	for device, hooks := range k.hooks {
		for _, h := range hooks {
			all = append(all, datapath.EdgeAttachment{Device: device, Hook: h})
		}
	}
	return all, nil
}

func (k *kernel) EdgeDevices() datapath.Hash[uint32, datapath.EdgeDevice] { return k.table }
func (k *kernel) Flows() *datapath.Flows                                  { return k.flows }
func (k *kernel) Door() *datapath.Door                                    { return k.door }
func (k *kernel) WaitForReaders() error                                   { k.waited(); return nil }

// hash is the table of devices.
type hash map[uint32]datapath.EdgeDevice

func (h hash) Max() uint32                               { return 64 }
func (h hash) Put(k uint32, v datapath.EdgeDevice) error { h[k] = v; return nil }
func (h hash) Delete(k uint32) error                     { delete(h, k); return nil }
func (h hash) All() (map[uint32]datapath.EdgeDevice, error) {
	all := map[uint32]datapath.EdgeDevice{}
	for k, v := range h {
		all[k] = v
	}
	return all, nil
}

// flowTable is a table of records. A walk hands out what was there at its beginning.
type flowTable map[datapath.Tuple]datapath.Track

func (f flowTable) Max() uint32 { return 64 }
func (f flowTable) Walk(visit func(datapath.Tuple, *datapath.Track) bool) error {
	copied := map[datapath.Tuple]datapath.Track{}
	for k, t := range f {
		copied[k] = t
	}
	for k, t := range copied {
		if !visit(k, &t) {
			break
		}
	}
	return nil
}
func (f flowTable) Get(k datapath.Tuple) (*datapath.Track, error) {
	if t, ok := f[k]; ok {
		return &t, nil
	}
	return nil, nil
}
func (f flowTable) Delete(k datapath.Tuple) (bool, error) {
	return f.DeleteIf(k, func(*datapath.Track) bool { return true })
}
func (f flowTable) DeleteIf(k datapath.Tuple, is func(*datapath.Track) bool) (bool, error) {
	t, existed := f[k]
	if !existed || !is(&t) {
		return false, nil
	}
	delete(f, k)
	return true, nil
}

// A world is an edge with devices.
type world struct {
	*Edge
	t       *testing.T
	kernel  *kernel
	devices []Device
}

func newWorld(t *testing.T, c Config, devices ...Device) *world {
	w := &world{t: t, kernel: newKernel(), devices: devices}
	c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	w.Edge = New(w.kernel, c)
	w.Edge.read = func([]netip.Addr) ([]Device, error) { return slices.Clone(w.devices), nil }
	w.node = nodeAddresses
	return w
}

// want compares the status, a line for each device: "eth0 tc", and complaints after
// an exclamation mark.
func (w *world) want(lines ...string) *Status {
	w.t.Helper()
	s := w.Complete(nil)
	var got []string
	for _, d := range s.Devices {
		got = append(got, d.Name+" "+d.Mode)
	}
	for _, c := range s.Complaints() {
		got = append(got, "! "+c)
	}
	if !slices.EqualFunc(got, lines, func(got, want string) bool { return strings.HasPrefix(got, want) }) {
		w.t.Errorf("the edge is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	return s
}

// attachedTo lists what is attached: "2 egress ingress xdp".
func (k *kernel) attachedTo() (all []string) {
	for device, hooks := range k.hooks {
		if len(hooks) > 0 {
			all = append(all, strings.TrimSuffix(fmt.Sprintln(device, strings.Trim(fmt.Sprint(hooks), "[]")), "\n"))
		}
	}
	slices.Sort(all)
	return all
}

var nodeAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// A flow of the tests: a client, what it asks, and a backend that sees the node.
const (
	client, asked = "198.51.100.7:40000", "192.0.2.1:30080"
	seen, backend = "192.0.2.1:1024", "10.10.2.11:8080"
)

func tuple(protocol uint8, from, to string) datapath.Tuple {
	f, t := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return datapath.Tuple{
		Source: datapath.AddressFrom(f.Addr()), SourcePort: datapath.NetworkOrder(f.Port()),
		Destination: datapath.AddressFrom(t.Addr()), DestinationPort: datapath.NetworkOrder(t.Port()),
		Protocol: protocol,
	}
}

// What a record of the tests tells.
const (
	lost    = -1
	none    = int(datapath.TrackNew)
	both    = int(datapath.TrackEstablished)
	closing = int(datapath.TrackClosing)
	over    = int(datapath.TrackClosed)
	fin     = 100 // closing, and this side has sent a FIN
)

func record(becomes datapath.Tuple, state int, lastSeen uint32, flags uint8) datapath.Track {
	if state == fin {
		state, flags = closing, flags|uint8(datapath.TrackFIN)
	}
	return datapath.Track{Becomes: becomes, State: uint8(state), LastSeen: lastSeen, Flags: flags}
}

// put stores the records of a flow: of the client's packets, and of the backend's.
func put(table flowTable, protocol uint8, client, backend string, states [2]int, lastSeen [2]uint32) {
	out, in := tuple(protocol, client, asked), tuple(protocol, backend, seen)
	if states[0] != lost {
		table[out] = record(in.Reverse(), states[0], lastSeen[0], 0)
	}
	if states[1] != lost {
		table[in] = record(out.Reverse(), states[1], lastSeen[1], uint8(datapath.TrackReply))
	}
}

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP
)
