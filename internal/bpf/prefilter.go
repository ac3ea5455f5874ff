// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/wakeup"
)

// A Prefilter is the set of bits by which the programs pass most packets and calls that are not for Services
// (bpf/filter/prefilter_bits.h). A needless bit costs time, but a missing one loses packets: bits are therefore
// set before what they are for exists, in both sets, also by programs, and are cleared only by a rebuild.
// All methods may be called from any goroutine; on a nil Prefilter they do nothing.
type Prefilter struct {
	at     *EdgeTCPrefilter
	wait   func() error // Tables.WaitForReaders
	wanted wakeup.Signal
	// pods is whether programs read the pod networks: those of the edge.
	pods bool

	mu       sync.Mutex
	last     EdgeTCPrefilterState // the set that is in use, or was before it was disabled
	disabled uint64               // how often it was disabled
	writing  bool                 // its networks are being written
	current  bool                 // SetProgramsCurrent
}

// NewPrefilter returns a prefilter in memory, which may be a table's. wait returns when all programs have
// ended that run at the call.
func NewPrefilter(at *EdgeTCPrefilter, wait func() error) *Prefilter {
	return &Prefilter{at: at, wait: wait, wanted: wakeup.NewSignal(), pods: true, last: EdgeTCPrefilterState(atomic.LoadUint32(&at.State))}
}

// Wanted is sent when the prefilter is disabled and a rebuild can enable it.
func (p *Prefilter) Wanted() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.wanted
}

// MapPrefilter returns the prefilter in a table.
func MapPrefilter(m *ebpf.Map, wait func() error) (*Prefilter, error) {
	if uintptr(m.ValueSize()) != unsafe.Sizeof(EdgeTCPrefilter{}) {
		return nil, fmt.Errorf("table %s has values of %d bytes", m, m.ValueSize())
	}
	page := uintptr(unix.Getpagesize())
	size := (unsafe.Sizeof(EdgeTCPrefilter{}) + page - 1) &^ (page - 1)
	memory, err := unix.Mmap(m.FD(), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of %s: %w", m, err)
	}
	return NewPrefilter((*EdgeTCPrefilter)(unsafe.Pointer(&memory[0])), wait), nil
}

const (
	prefilterMultiplier      = uint64(EdgeTCPrefilterMultiplierPREFILTER_FIRST_HIGH)<<32 | uint64(EdgeTCPrefilterMultiplierPREFILTER_FIRST_LOW)
	prefilterOtherMultiplier = uint64(EdgeTCPrefilterMultiplierPREFILTER_LAST_HIGH)<<32 | uint64(EdgeTCPrefilterMultiplierPREFILTER_LAST_LOW)
)

// prefilterAddress, prefilterEnd and prefilterSource are the hashes of bpf/filter/prefilter_bits.h.
func prefilterAddress(a [16]byte) uint64 {
	first, last := binary.LittleEndian.Uint64(a[:8]), binary.LittleEndian.Uint64(a[8:])
	return (first*prefilterMultiplier ^ last) * prefilterOtherMultiplier
}

func prefilterEnd(address uint64, port uint16) uint64 {
	return (address + uint64(port) + 1) * prefilterMultiplier
}

func prefilterSource(address uint64) uint64 { return ^address * prefilterOtherMultiplier }

// set sets a bit in both sets. It takes p.mu to clear one.
func (p *Prefilter) set(hash uint64) {
	word, bit := hash>>EdgeTCPrefilterSizePREFILTER_WORD_SHIFT, uint64(1)<<(hash>>EdgeTCPrefilterSizePREFILTER_BIT_SHIFT&63)
	for i := range uint64(2) {
		at := &p.at.Bits[i*uint64(EdgeTCPrefilterSizePREFILTER_WORDS)+word]
		if atomic.LoadUint64(at)&bit == 0 {
			atomic.OrUint64(at, bit)
		}
	}
}

func (p *Prefilter) add(address uint64, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(address)
	p.set(prefilterEnd(address, port))
}

// Add lets packets to a frontend pass. Call it before the frontend is in the table.
func (p *Prefilter) Add(key FrontendKey) {
	if p != nil {
		p.add(prefilterAddress(key.Address.Bytes), key.Port)
	}
}

// Contains reports whether packets to a frontend pass.
func (p *Prefilter) Contains(key FrontendKey) bool {
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	address := prefilterAddress(key.Address.Bytes)
	switch state := EdgeTCPrefilterState(p.at.State); state {
	case EdgeTCPrefilterStatePREFILTER_FIRST, EdgeTCPrefilterStatePREFILTER_SECOND:
		first := uint64(state-EdgeTCPrefilterStatePREFILTER_FIRST) * uint64(EdgeTCPrefilterSizePREFILTER_WORDS)
		return p.has(first, address) && p.has(first, prefilterEnd(address, key.Port))
	}
	return true
}

// has reports whether a bit is set in the set that begins with a word.
func (p *Prefilter) has(first, hash uint64) bool {
	word := atomic.LoadUint64(&p.at.Bits[first+hash>>EdgeTCPrefilterSizePREFILTER_WORD_SHIFT])
	return word>>(hash>>EdgeTCPrefilterSizePREFILTER_BIT_SHIFT&63)&1 != 0
}

// AddFlow lets the packets of a conntrack entry pass.
func (p *Prefilter) AddFlow(key Tuple, t *ConntrackEntry) {
	if p == nil {
		return
	}
	if t.Flags&^uint8(ConntrackFIN|ConntrackDSR|ConntrackStream) == uint8(ConntrackReply|ConntrackLocal) { // is_local_reply
		p.add(prefilterSource(prefilterAddress(key.Source.Bytes)), key.SourcePort)
		return
	}
	p.add(prefilterAddress(key.Destination.Bytes), key.DestinationPort)
}

// SetProgramsCurrent sets whether only this agent's programs are attached. Programs of an earlier agent may
// insert conntrack entries into tables that no walk of this agent sees: until they are replaced the
// prefilter must not be rebuilt.
func (p *Prefilter) SetProgramsCurrent(current bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if current && !p.current && !p.Enabled() {
		p.wanted.Send()
	}
	p.current = current
}

// A PrefilterRebuild fills a prefilter's unused set, which then replaces the used one. The methods of a nil
// PrefilterRebuild do nothing.
type PrefilterRebuild struct {
	*Prefilter
	next     EdgeTCPrefilterState
	disabled uint64 // Prefilter.disabled when it began
}

// BeginRebuild waits for a grace period, and clears the unused set. The caller must wait for the programs that
// then run, because they may have seen bits that were set before, add all frontends and flows, and call End.
// What programs or callers of Add add meanwhile is in both sets. Only one rebuild may run at a time.
//
// It returns nil if the prefilter must stay as it is (SetProgramsCurrent).
func (p *Prefilter) BeginRebuild() *PrefilterRebuild {
	if p == nil || p.wait() != nil {
		return nil // the caller's wait fails, too
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.current {
		return nil
	}
	return p.clear()
}

// End enables the rebuilt prefilter, unless networks have changed since BeginRebuild.
func (r *PrefilterRebuild) End() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Prefilter.disabled == r.disabled && !r.writing {
		r.last = r.next
		atomic.StoreUint32(&r.at.State, uint32(r.next))
	}
}

// Rebuild is BeginRebuild, the wait for programs, fill, and End, regardless of SetProgramsCurrent.
func (p *Prefilter) Rebuild(fill func() error) error {
	if p == nil {
		return fill()
	}
	if err := p.wait(); err != nil {
		return err
	}
	p.mu.Lock()
	rebuild := p.clear()
	p.mu.Unlock()
	if err := p.wait(); err != nil {
		return err
	}
	if err := fill(); err != nil {
		return err
	}
	rebuild.End()
	return nil
}

// clear empties the unused set: not the one that was in use until it was disabled a moment ago. The caller holds the
// lock and has waited for programs: a socket's hook whose task was preempted may still read the set that was in use
// before the last rebuild ended.
func (p *Prefilter) clear() *PrefilterRebuild {
	next := EdgeTCPrefilterStatePREFILTER_FIRST
	if p.last == EdgeTCPrefilterStatePREFILTER_FIRST {
		next = EdgeTCPrefilterStatePREFILTER_SECOND
	}
	words := p.at.Bits[:EdgeTCPrefilterSizePREFILTER_WORDS]
	if next == EdgeTCPrefilterStatePREFILTER_SECOND {
		words = p.at.Bits[EdgeTCPrefilterSizePREFILTER_WORDS:]
	}
	for i := range words {
		atomic.StoreUint64(&words[i], 0)
	}
	return &PrefilterRebuild{p, next, p.disabled}
}

// Enabled reports whether the prefilter filters packets.
func (p *Prefilter) Enabled() bool {
	return p != nil && EdgeTCPrefilterState(atomic.LoadUint32(&p.at.State)) != EdgeTCPrefilterStatePREFILTER_OFF
}

// Disable lets all packets pass until the prefilter is rebuilt.
func (p *Prefilter) Disable() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disabled++
	atomic.StoreUint32(&p.at.State, uint32(EdgeTCPrefilterStatePREFILTER_OFF))
}

// SetServiceNetworks lets packets to any address of networks pass. If the networks have changed, the
// prefilter is disabled until it is rebuilt.
func (p *Prefilter) SetServiceNetworks(networks []netip.Prefix) error {
	if p == nil {
		return nil
	}
	services4, services6 := prefilterNetworks(networks, len(p.at.Services4), summarize)
	if slices.Equal(services4, p.at.Services4[:]) && slices.Equal(services6, p.at.Services6[:]) {
		p.noteWriting(false) // others that could not be written are no longer wanted
		return nil
	}
	p.Disable()
	p.noteWriting(true)
	if err := p.wait(); err != nil {
		return err // a rebuild sees that the networks are being written
	}
	copy(p.at.Services4[:], services4)
	copy(p.at.Services6[:], services6)
	p.noteWriting(false)
	return nil
}

// noteWriting notes that networks are being written, or have been: then a rebuild enables the prefilter that begins
// from now on, and so waits for the programs that may have read old networks.
func (p *Prefilter) noteWriting(writing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing && !writing {
		p.disabled++
		p.wanted.Send()
	}
	p.writing = writing
}

// prefilterNetworks returns networks in the format that programs compare addresses with: for each family at
// most those that choose returns.
func prefilterNetworks(networks []netip.Prefix, most int, choose func([]netip.Prefix, int) []netip.Prefix) (v4 []EdgeTCPrefilterNetwork4, v6 []EdgeTCPrefilterNetwork6) {
	v4, v6 = make([]EdgeTCPrefilterNetwork4, most), make([]EdgeTCPrefilterNetwork6, most)
	for i := range most { // no address has these values
		v4[i].Value = 1
		v6[i].Value[0] = 1
	}
	all4, all6 := byFamily(networks)
	for i, p := range choose(all4, most) {
		mask, value := maskOf(p), p.Addr().As4()
		v4[i] = EdgeTCPrefilterNetwork4{Mask: binary.LittleEndian.Uint32(mask[:]), Value: binary.LittleEndian.Uint32(value[:])}
	}
	for i, p := range choose(all6, most) {
		mask, value := maskOf(p), p.Addr().As16()
		v6[i] = EdgeTCPrefilterNetwork6{Mask: prefilterWords(mask), Value: prefilterWords(value)}
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

func prefilterWords(b [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

func maskOf(p netip.Prefix) (mask [16]byte) {
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return mask
}

// summarize reduces networks of one family to a number: it repeatedly replaces the two that are closest to
// each other by the network around both.
func summarize(networks []netip.Prefix, most int) []netip.Prefix {
	all := slices.SortedFunc(slices.Values(networks), netip.Prefix.Compare)
	for len(all) > most {
		at, closest := 0, netip.Prefix{}
		for i := range len(all) - 1 {
			if p := commonNetwork(all[i], all[i+1]); i == 0 || p.Bits() > closest.Bits() {
				at, closest = i, p
			}
		}
		all = slices.Replace(all, at, at+2, closest)
	}
	return all
}

// largestNetworks returns the largest networks of one family, after joining adjacent ones.
func largestNetworks(networks []netip.Prefix, most int) []netip.Prefix {
	all := joinNetworks(networks)
	return all[:min(most, len(all))]
}

// joinNetworks joins adjacent networks of one family, and returns the result, the largest first.
func joinNetworks(networks []netip.Prefix) []netip.Prefix {
	var joined []netip.Prefix
	for _, p := range slices.SortedFunc(slices.Values(networks), netip.Prefix.Compare) {
		for n := len(joined); n > 0; n = len(joined) {
			last := joined[n-1]
			if last.Bits() <= p.Bits() && last.Contains(p.Addr()) {
				p = last
			} else if around := commonNetwork(last, p); last.Bits() == p.Bits() && around.Bits() == p.Bits()-1 {
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

// commonNetwork returns the smallest network around two.
func commonNetwork(a, b netip.Prefix) netip.Prefix {
	p := a
	for !p.Contains(b.Addr()) || p.Bits() > b.Bits() {
		p = netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
	}
	return p
}

// Prefilter returns the prefilter of this datapath.
func (d *Datapath) Prefilter() *Prefilter { return d.Tables.Prefilter }
