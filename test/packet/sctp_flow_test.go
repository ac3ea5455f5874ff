// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// sctpFlow is an association with a remote backend.
func (w *world) sctpFlow(t testing.TB, at hook, f family) *flow {
	t.Helper()
	fl := &flow{w, at, f, f.association(sctpRemote), model.Tuple{Source: f.remote, Destination: f.own, SourcePort: sctpRemote,
		DestinationPort: clientPort, Protocol: sctp}}
	fl.clientSends(t, sctpInit)
	return fl
}

func (fl *flow) clientSends(t testing.TB, chunk byte) {
	t.Helper()
	p := fl.question.with(chunk, "0123456789abcdef")
	fl.sends(t, fl.at, p.frame(t), p.forwarded(fl.at, on(fl.f.own, clientPort), on(fl.f.remote, sctpRemote), nodeBMAC))
}

func (fl *flow) backendSends(t testing.TB, chunk byte) {
	t.Helper()
	p := probe{from: on(fl.f.remote, sctpRemote), to: on(fl.f.own, clientPort), protocol: sctp, source: nodeBMAC, target: eth0MAC}.with(chunk, "abcd")
	fl.sends(t, fl.at, p.frame(t), p.forwarded(fl.at, fl.question.to, fl.question.from, gatewayMAC))
}

// An association's life (RFC 9260 section 4): half open until the client has replied to the backend, closing
// with SHUTDOWN, closed when the other side has agreed. ABORT closes it, too. An INIT evicts no established
// one.
func TestSCTPLife(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, byClient := range []bool{true, false} {
			w.forget(t)
			fl := w.sctpFlow(t, at, f)
			one, other := fl.clientSends, fl.backendSends
			if !byClient {
				one, other = other, one
			}
			fl.clientSends(t, sctpInit)
			fl.backendSends(t, sctpInitAck)
			fl.is(t, halfOpen, model.StateReplied)
			fl.clientSends(t, sctpCookieEcho)
			fl.is(t, tracks, model.StateEstablished)
			fl.backendSends(t, sctpCookieAck)
			fl.clientSends(t, sctpData)
			fl.backendSends(t, sctpSack)
			fl.clientSends(t, sctpHeartbeat)
			fl.clientSends(t, sctpInit) // a new association of the peer: for the backend to judge
			fl.is(t, tracks, model.StateEstablished)
			one(t, sctpShutdown)
			fl.is(t, tracks, model.StateClosing)
			one(t, sctpShutdown)
			fl.is(t, tracks, model.StateClosing)
			other(t, sctpShutdownAck)
			fl.is(t, tracks, model.StateClosed)
			one(t, sctpShutdownComplete)
			fl.is(t, tracks, model.StateClosed)
			fl.clientSends(t, sctpInit)
			fl.is(t, halfOpen, model.StateNew)
			fl.backendSends(t, sctpInitAck)
			fl.clientSends(t, sctpCookieEcho)
			one(t, sctpAbort)
			fl.is(t, tracks, model.StateClosed)
		}
	})
}

// A flood of INITs with changing ports evicts half-open associations and no established one.
func TestSCTPFlood(t *testing.T) {
	w := newWorld(t, limits{tracks: 512})
	w.apply(t, w.scene())
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		fl := w.sctpFlow(t, at, f)
		fl.backendSends(t, sctpInitAck)
		fl.clientSends(t, sctpCookieEcho)
		for n := range uint16(5000) {
			flood := f.association(sctpRemote)
			flood.from = on(f.client.Next(), 1000+n)
			w.run(t, at, flood.frame(t))
		}
		before := w.counts(t)
		if before[model.New] < 4000 {
			t.Fatalf("%d flows began, want a flood", before[model.New])
		}
		fl.clientSends(t, sctpData)
		w.counted(t, before, model.Established)
		before = w.counts(t)
		fl.backendSends(t, sctpData)
		w.counted(t, before, model.Reply)
		if n := len(w.records(t, halfOpen)); n > 512 {
			t.Errorf("%d half-open conntrack entries, want at most 512", n)
		}
	})
}

// Either entry of an association restores the other one: the client's port is its own, and is found again.
func TestSCTPLostRecords(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		fl := w.sctpFlow(t, at, f)
		fl.backendSends(t, sctpInitAck)
		fl.clientSends(t, sctpCookieEcho)
		w.lose(t, tracks, fl.tuple())
		before := w.counts(t)
		fl.clientSends(t, sctpData)
		w.counted(t, before, model.Recovered)
		fl.is(t, tracks, model.StateEstablished)
		w.lose(t, tracks, fl.own)
		w.age(t, fl.tuple())
		fl.clientSends(t, sctpData)
		fl.backendSends(t, sctpSack)
		fl.is(t, tracks, model.StateEstablished)
	})
}
