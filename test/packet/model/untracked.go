// SPDX-License-Identifier: Apache-2.0

package model

// remembered is the history of a packet's slot.
func (f Frontend) remembered(hash uint32) Slot {
	if f.History == nil {
		return Slot{}
	}
	return f.History[uint64(hash)*uint64(len(f.History))>>32]
}

// untracked forwards a packet that needs no entry; ok is false if it may need one, or is handled otherwise.
func (v *visit) untracked() (result Result, ok bool) {
	f, exact := v.Frontends[FrontendKey{v.tuple.Destination, v.tuple.DestinationPort, v.tuple.Protocol}]
	hash := Hash(v.tuple)
	if v.wrapped != nil || !exact || !f.Untracked || len(f.Outside.Slots) == 0 || noSource(v.tuple.Source) || ofLink(v.tuple.Source) {
		return result, false
	}
	if f.remembered(hash).Contested {
		if track, _ := v.find(v.tuple); v.tuple.Protocol != UDP || track != nil {
			return result, false
		}
	}
	id := f.Outside.Slots[uint64(hash)*uint64(len(f.Outside.Slots))>>32]
	backend, there := v.Backends[id]
	if !there || v.tuple.Protocol == SCTP && backend.Port != v.tuple.DestinationPort || v.dsrOf(f.DSR, backend) == SNAT ||
		f.SourceSet != 0 && covers(v.Ranges[f.SourceSet], v.tuple.Source) < 0 {
		return result, false
	}
	track := &Track{Becomes: v.tuple, Backend: id, DSR: f.DSR}
	track.Becomes.Destination, track.Becomes.DestinationPort = backend.Address, backend.Port
	d, result, ok := v.way(track)
	if !ok {
		return result, true
	}
	return v.sendDirect(d, Untracked), true
}

// before is the backend of a continuing flow without an entry; 0: unknown.
func (v *visit) before(f Frontend, hash uint32) uint32 {
	slot := f.remembered(hash)
	if v.wrapped != nil || !slot.Contested || v.tuple.Protocol == UDP || v.flags&syn != 0 || v.isPod(v.tuple.Source) {
		return 0
	}
	return slot.Stable
}

// forgedSYN is where to send a packet that does not continue near a forged SYN with its tuple; nil if the entry
// applies, or nobody knows.
func (v *visit) forgedSYN(track *Track) *Track {
	if v.tuple.Protocol != TCP || v.fragment == laterFragment || track.Next == 0 || near(v.sequence, track.Next) {
		return nil
	}
	f, exact := v.Frontends[FrontendKey{v.tuple.Destination, v.tuple.DestinationPort, v.tuple.Protocol}]
	if !exact {
		return nil
	}
	id := v.before(f, Hash(v.tuple))
	backend, there := v.Backends[id]
	stable := &Track{Becomes: v.tuple, Backend: id}
	if !there || id == track.Backend && track.DSR != SNAT {
		return nil
	}
	if stable.DSR = v.dsrOf(f.Before, backend); stable.DSR == SNAT {
		return nil
	}
	stable.Becomes.Destination, stable.Becomes.DestinationPort = backend.Address, backend.Port
	return stable
}

// goesOn updates the entry of such a flow.
func (v *visit) goesOn(track *Track) {
	track.State = StateEstablished
	if v.flags&fin != 0 {
		track.State, track.Fin = StateClosing, true
	}
	if v.flags&rst != 0 {
		track.State = StateClosed
	}
}
