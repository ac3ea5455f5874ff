// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
)

// Timeouts say how long a flow is remembered that nobody uses.
type Timeouts struct {
	TCP, UDP time.Duration // of flows that are assured; SCTP has TCP's
}

// LeastTimeout is what a flow's age is told apart by.
const LeastTimeout = time.Second

// DefaultTimeouts outlive TCP keepalive's default of two hours. That of UDP, and those of what is not
// assured, are the kernel's (net.netfilter.nf_conntrack_udp_timeout_stream).
var DefaultTimeouts = Timeouts{TCP: 8 * time.Hour, UDP: 2 * time.Minute}

// What nobody sets.
const (
	halfOpenTCP = 60 * time.Second
	halfOpenUDP = 30 * time.Second
	closingTCP  = 60 * time.Second // a FIN of one side; with DSR there is none but the client's
	closedTCP   = 10 * time.Second
)

// Datapath are the timeouts that the programs go by. They need no agent for it: the sweep only
// keeps the tables tidy, and the devices and slots that nothing needs any more.
func (t Timeouts) Datapath() *datapath.ConntrackTimeouts {
	return &datapath.ConntrackTimeouts{
		HalfOpenTCP: halfOpenTCP, HalfOpenUDP: halfOpenUDP, TCP: t.TCP, UDP: t.UDP, Closing: closingTCP, Closed: closedTCP,
	}
}

// of is how long a flow in a state is remembered.
func (t Timeouts) of(protocol uint8, state datapath.TrackState) time.Duration {
	tcp := protocol != unix.IPPROTO_UDP
	switch {
	case state == datapath.TrackClosed:
		return closedTCP
	case state == datapath.TrackClosing:
		return closingTCP
	case state <= datapath.TrackAnswered && tcp:
		return halfOpenTCP
	case state <= datapath.TrackAnswered:
		return halfOpenUDP
	case tcp:
		return t.TCP
	}
	return t.UDP
}

// least is the shortest time that a flow may be remembered of which one record is
// known: the other may say more.
func (t Timeouts) least(protocol uint8, state datapath.TrackState) time.Duration {
	if state == datapath.TrackClosing {
		return closedTCP
	}
	return t.of(protocol, state)
}

// Idle is how long an established flow of a protocol is remembered on which nothing is sent.
func (t Timeouts) Idle(protocol uint8) time.Duration {
	return t.of(protocol, datapath.TrackEstablished)
}

// StateOf is the state of a flow by its two records; other is nil if it is lost.
func StateOf(one, other *datapath.Track) datapath.TrackState {
	if other == nil {
		return datapath.TrackState(one.State)
	}
	if one.Flags&other.Flags&uint8(datapath.TrackFIN) != 0 {
		return datapath.TrackClosed
	}
	return datapath.TrackState(max(one.State, other.State))
}

// expired says whether a flow's time has come; now is in seconds as last_seen is.
func (t Timeouts) expired(key datapath.Tuple, one, other *datapath.Track, now uint32) bool {
	return idle(lastSeen(one, other), now) >= t.of(key.Protocol, StateOf(one, other))
}

// lastSeen is the later one of two records.
func lastSeen(one, other *datapath.Track) uint32 {
	if other != nil && int32(other.LastSeen-one.LastSeen) > 0 {
		return other.LastSeen
	}
	return one.LastSeen
}

// Idle is how long ago either side of a flow was heard; other is nil if it is lost.
func Idle(one, other *datapath.Track) time.Duration {
	return idle(lastSeen(one, other), datapath.Now())
}

// idle is how long ago something was seen; a packet may be ahead of the clock that
// was read before it.
func idle(seen, now uint32) time.Duration {
	return time.Duration(max(int32(now-seen), 0)) * time.Second
}
