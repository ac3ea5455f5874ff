// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A Door is the set of bits by which the edge leaves most packets alone that are none of
// ours (bpf/lib/door.h). A bit that is set in vain costs time, a missing one loses packets:
// so bits are set before what they are for, in both sets, by the programs too, and nothing is
// cleared but in Renew. All methods may be called from any goroutine; those of a nil Door do
// nothing.
type Door struct {
	at   *EdgeTCDoor
	wait func() error // Tables.WaitForReaders

	mu      sync.Mutex
	opened  uint64 // times that it has been opened
	writing bool   // its networks are being written
}

// NewDoor is a door in memory, which may be a table's. wait returns when the programs have
// ended that were running at the call.
func NewDoor(at *EdgeTCDoor, wait func() error) *Door { return &Door{at: at, wait: wait} }

// MapDoor is the door in a table.
func MapDoor(m *ebpf.Map, wait func() error) (*Door, error) {
	if uintptr(m.ValueSize()) != unsafe.Sizeof(EdgeTCDoor{}) {
		return nil, fmt.Errorf("table %s has values of %d bytes", m, m.ValueSize())
	}
	page := uintptr(unix.Getpagesize())
	size := (unsafe.Sizeof(EdgeTCDoor{}) + page - 1) &^ (page - 1)
	memory, err := unix.Mmap(m.FD(), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of %s: %w", m, err)
	}
	return NewDoor((*EdgeTCDoor)(unsafe.Pointer(&memory[0])), wait), nil
}

const (
	doorMultiplier      = uint64(EdgeTCDoorMultiplierDOOR_FIRST_HIGH)<<32 | uint64(EdgeTCDoorMultiplierDOOR_FIRST_LOW)
	doorOtherMultiplier = uint64(EdgeTCDoorMultiplierDOOR_LAST_HIGH)<<32 | uint64(EdgeTCDoorMultiplierDOOR_LAST_LOW)
)

// doorAddress, doorEnd and doorSource are those of bpf/lib/door.h.
func doorAddress(a [16]byte) uint64 {
	first, last := binary.LittleEndian.Uint64(a[:8]), binary.LittleEndian.Uint64(a[8:])
	return (first*doorMultiplier ^ last) * doorOtherMultiplier
}

func doorEnd(address uint64, port uint16) uint64 {
	return (address + uint64(port) + 1) * doorMultiplier
}

func doorSource(address uint64) uint64 { return ^address * doorOtherMultiplier }

// set sets a bit in both sets. Who clears one has d.mu.
func (d *Door) set(hash uint64) {
	word, bit := hash>>EdgeTCDoorSizeDOOR_WORD_SHIFT, uint64(1)<<(hash>>EdgeTCDoorSizeDOOR_BIT_SHIFT&63)
	for i := range uint64(2) {
		at := &d.at.Bits[i*uint64(EdgeTCDoorSizeDOOR_WORDS)+word]
		if atomic.LoadUint64(at)&bit == 0 {
			atomic.OrUint64(at, bit)
		}
	}
}

func (d *Door) admit(address uint64, port uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set(address)
	d.set(doorEnd(address, port))
}

// Admit lets in what asks for a frontend. Call it before the frontend is in the table.
func (d *Door) Admit(key FrontendKey) {
	if d != nil {
		d.admit(doorAddress(key.Address.Bytes), key.Port)
	}
}

// Admits says whether what asks for a frontend is let in.
func (d *Door) Admits(key FrontendKey) bool {
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	address := doorAddress(key.Address.Bytes)
	switch state := EdgeTCDoorState(d.at.State); state {
	case EdgeTCDoorStateDOOR_FIRST, EdgeTCDoorStateDOOR_SECOND:
		first := uint64(state-EdgeTCDoorStateDOOR_FIRST) * uint64(EdgeTCDoorSizeDOOR_WORDS)
		return d.has(first, address) && d.has(first, doorEnd(address, key.Port))
	}
	return true
}

// has says whether a bit is set in the set that begins with a word.
func (d *Door) has(first, hash uint64) bool {
	word := atomic.LoadUint64(&d.at.Bits[first+hash>>EdgeTCDoorSizeDOOR_WORD_SHIFT])
	return word>>(hash>>EdgeTCDoorSizeDOOR_BIT_SHIFT&63)&1 != 0
}

// AdmitRecord lets in the packets that a record is for.
func (d *Door) AdmitRecord(key Tuple, t *Track) {
	if d == nil {
		return
	}
	if t.Flags&^uint8(TrackFIN|TrackDSR) == uint8(TrackReply|TrackLocal) { // answers_here
		d.admit(doorSource(doorAddress(key.Source.Bytes)), key.SourcePort)
		return
	}
	d.admit(doorAddress(key.Destination.Bytes), key.DestinationPort)
}

// Renew makes the sets anew: fill admits all that there is, and is called when every program
// has ended that may have left a bit alone because it was set. What others admit meanwhile,
// programs or callers of Admit, is in both sets. Without an error the door is shut then, unless
// networks have changed meanwhile. One call at a time.
func (d *Door) Renew(fill func() error) error {
	if d == nil {
		return fill()
	}
	next, opened := d.clear()
	if err := d.wait(); err != nil {
		return err
	}
	if err := fill(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened == opened && !d.writing {
		atomic.StoreUint32(&d.at.State, uint32(next))
	}
	return nil
}

// clear empties the set that does not hold.
func (d *Door) clear() (next EdgeTCDoorState, opened uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next = EdgeTCDoorStateDOOR_FIRST
	if EdgeTCDoorState(atomic.LoadUint32(&d.at.State)) == EdgeTCDoorStateDOOR_FIRST {
		next = EdgeTCDoorStateDOOR_SECOND
	}
	words := d.at.Bits[:EdgeTCDoorSizeDOOR_WORDS]
	if next == EdgeTCDoorStateDOOR_SECOND {
		words = d.at.Bits[EdgeTCDoorSizeDOOR_WORDS:]
	}
	for i := range words {
		atomic.StoreUint64(&words[i], 0)
	}
	return next, d.opened
}

// Shut says whether packets are left alone at the door.
func (d *Door) Shut() bool {
	return d != nil && EdgeTCDoorState(atomic.LoadUint32(&d.at.State)) != EdgeTCDoorStateDOOR_OPEN
}

// Open has everything looked up until the door is renewed.
func (d *Door) Open() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened++
	atomic.StoreUint32(&d.at.State, uint32(EdgeTCDoorStateDOOR_OPEN))
}

// SetServiceNetworks lets in what asks for any address of networks. If they are others than
// before the door is open until it is renewed.
func (d *Door) SetServiceNetworks(networks []netip.Prefix) error {
	if d == nil {
		return nil
	}
	services4, services6 := doorNetworks(networks, len(d.at.Services4), around)
	if slices.Equal(services4, d.at.Services4[:]) && slices.Equal(services6, d.at.Services6[:]) {
		d.write(false) // others that could not be written are not wanted any more
		return nil
	}
	d.Open()
	d.write(true)
	if err := d.wait(); err != nil {
		return err // whoever renews it sees that it is being written
	}
	copy(d.at.Services4[:], services4)
	copy(d.at.Services6[:], services6)
	d.write(false)
	return nil
}

func (d *Door) write(writing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writing = writing
}

// doorNetworks are networks as the programs compare addresses with them: no more of a family
// than choose makes of them.
func doorNetworks(networks []netip.Prefix, most int, choose func([]netip.Prefix, int) []netip.Prefix) (v4 []EdgeTCDoorNetwork4, v6 []EdgeTCDoorNetwork6) {
	v4, v6 = make([]EdgeTCDoorNetwork4, most), make([]EdgeTCDoorNetwork6, most)
	for i := range most { // nothing has these values
		v4[i].Value = 1
		v6[i].Value[0] = 1
	}
	all4, all6 := byFamily(networks)
	for i, p := range choose(all4, most) {
		mask, value := maskOf(p), p.Addr().As4()
		v4[i] = EdgeTCDoorNetwork4{Mask: binary.LittleEndian.Uint32(mask[:]), Value: binary.LittleEndian.Uint32(value[:])}
	}
	for i, p := range choose(all6, most) {
		mask, value := maskOf(p), p.Addr().As16()
		v6[i] = EdgeTCDoorNetwork6{Mask: doorWords(mask), Value: doorWords(value)}
	}
	return v4, v6
}

func byFamily(networks []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, p := range networks {
		if p.Addr().Is4() {
			v4 = append(v4, p.Masked())
		} else {
			v6 = append(v6, p.Masked())
		}
	}
	return v4, v6
}

func doorWords(b [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

func maskOf(p netip.Prefix) (mask [16]byte) {
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return mask
}

// around makes networks of one family no more than so many: of those that are closest to each
// other it takes the one around both.
func around(networks []netip.Prefix, most int) []netip.Prefix {
	all := slices.Clone(networks)
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for len(all) > most {
		at, closest := 0, netip.Prefix{}
		for i := range len(all) - 1 {
			if p := both(all[i], all[i+1]); i == 0 || p.Bits() > closest.Bits() {
				at, closest = i, p
			}
		}
		all = slices.Replace(all, at, at+2, closest)
	}
	return all
}

// largest are the largest networks of one family, of which those that lie side by side are one.
func largest(networks []netip.Prefix, most int) []netip.Prefix {
	all := joined(networks)
	return all[:min(most, len(all))]
}

// joined are networks of one family, the largest first, of which those that lie side by side are one.
func joined(networks []netip.Prefix) []netip.Prefix {
	all := slices.Clone(networks)
	slices.SortFunc(all, func(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) })
	var joined []netip.Prefix
	for _, p := range all {
		for n := len(joined); n > 0; n = len(joined) {
			last := joined[n-1]
			if last.Bits() <= p.Bits() && last.Contains(p.Addr()) {
				p = last
			} else if around := both(last, p); last.Bits() == p.Bits() && around.Bits() == p.Bits()-1 {
				p = around
			} else {
				break
			}
			joined = joined[:n-1]
		}
		joined = append(joined, p)
	}
	slices.SortStableFunc(joined, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	return joined
}

// both is the smallest network around two.
func both(a, b netip.Prefix) netip.Prefix {
	p := a
	for !p.Contains(b.Addr()) || p.Bits() > b.Bits() {
		p = netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
	}
	return p
}

// Door is that of this datapath; nil where there is no edge.
func (d *Datapath) Door() *Door { return d.Tables.Door }
