// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// Timeouts are the times after which an idle flow expires, by its state. SCTP has the timeouts of TCP.
type Timeouts struct {
	TCPUnreplied   time.Duration // before the handshake is complete
	TCPEstablished time.Duration
	TCPCloseWait   time.Duration // after a FIN of one side
	TCPCloseDSR    time.Duration // after the client's FIN, if only the client's packets are seen
	TCPClose       time.Duration // after a RST, or a FIN of each side
	UDPUnreplied   time.Duration // before both sides have sent for two seconds
	UDPStream      time.Duration
}

// DefaultTimeouts are those of Linux (net.netfilter.nf_conntrack_*_timeout_*), except for TCP: established
// connections outlive the first TCP keepalive probe, which is sent after two hours; half-closed ones are tracked for an
// hour, as by kube-proxy, while the other side prepares its answer; closed ones for as long as Linux' conntrack tracks
// TIME_WAIT, twice as long as a backend on Linux is in that state. ct_timeouts in
// bpf/conntrack/table.h has the same values, which count if bpf.EdgeOptions has none.
var DefaultTimeouts = Timeouts{
	TCPUnreplied:   60 * time.Second,
	TCPEstablished: 8 * time.Hour,
	TCPCloseWait:   time.Hour,
	TCPCloseDSR:    60 * time.Second,
	TCPClose:       2 * time.Minute,
	UDPUnreplied:   30 * time.Second,
	UDPStream:      2 * time.Minute,
}

const (
	// minTimeout is the resolution of Entry.LastSeen.
	minTimeout = time.Second
	// tickBits: a tick of the programs is 2^20 ns.
	tickBits = 20
	// maxTimeout is the longest time that the programs can distinguish from one in the past.
	maxTimeout = 24 * 24 * time.Hour
)

// timeoutFlag is a flag that sets a timeout.
type timeoutFlag struct {
	name    string
	timeout *time.Duration
	index   bpf.EdgeTCCtTimeout // in the programs
	usage   string
}

// flags returns a flag for each timeout, named like kube-proxy's for the same state if it has one.
func (t *Timeouts) flags() []timeoutFlag {
	return []timeoutFlag{
		{"conntrack-tcp-timeout-unreplied", &t.TCPUnreplied, bpf.EdgeTCCtTimeoutTIMEOUT_TCP_UNREPLIED, "conntrack timeout of a TCP connection whose handshake is not complete"},
		{"conntrack-tcp-timeout-established", &t.TCPEstablished, bpf.EdgeTCCtTimeoutTIMEOUT_TCP_ESTABLISHED, "conntrack timeout of an established TCP connection: how long an idle connection of a client is kept"},
		{"conntrack-tcp-timeout-close-wait", &t.TCPCloseWait, bpf.EdgeTCCtTimeoutTIMEOUT_CLOSING, "conntrack timeout of a TCP connection after a FIN of one side"},
		{"conntrack-tcp-timeout-close-wait-dsr", &t.TCPCloseDSR, bpf.EdgeTCCtTimeoutTIMEOUT_CLOSING_DSR, "conntrack timeout of a TCP connection by DSR after the client's FIN: the backend's packets are not seen"},
		{"conntrack-tcp-timeout-close", &t.TCPClose, bpf.EdgeTCCtTimeoutTIMEOUT_CLOSED, "conntrack timeout of a TCP connection after a RST, or a FIN of each side"},
		{"conntrack-udp-timeout", &t.UDPUnreplied, bpf.EdgeTCCtTimeoutTIMEOUT_UDP_UNREPLIED, "conntrack timeout of a UDP flow that is not a stream: unreplied, or younger than two seconds"},
		{"conntrack-udp-timeout-stream", &t.UDPStream, bpf.EdgeTCCtTimeoutTIMEOUT_UDP_STREAM, "conntrack timeout of a UDP stream: a flow with packets in both directions for two seconds"},
	}
}

// AddFlags adds a flag for each timeout. The value of t is the default.
func (t *Timeouts) AddFlags(fs *pflag.FlagSet) {
	for _, f := range t.flags() {
		fs.DurationVar(f.timeout, f.name, *f.timeout, f.usage)
	}
	for old, name := range map[string]string{
		"flow-timeout-tcp": "conntrack-tcp-timeout-established", "flow-timeout-udp": "conntrack-udp-timeout-stream",
	} {
		f := *fs.Lookup(name)
		f.Name, f.Hidden, f.Deprecated = old, true, "use --"+name
		fs.AddFlag(&f)
	}
}

// Check returns an error that names the flag of a timeout that is out of range.
func (t *Timeouts) Check() error {
	for _, f := range t.flags() {
		if *f.timeout < minTimeout {
			return fmt.Errorf("--%s %v: at least %v, such as 30s or 8h: the age of flows is known in seconds, and with less a flow would expire as soon as it begins", f.name, *f.timeout, minTimeout)
		}
		if *f.timeout > maxTimeout {
			return fmt.Errorf("--%s %v: at most %v, such as 8h: the programs cannot distinguish a longer time from the past", f.name, *f.timeout, maxTimeout)
		}
	}
	return nil
}

// Datapath returns the timeouts as the programs have them. The programs apply them without the agent.
func (t *Timeouts) Datapath() *bpf.ConntrackTimeouts {
	var ticks bpf.ConntrackTimeouts
	for _, f := range t.flags() {
		ticks[f.index] = uint32(f.timeout.Nanoseconds() >> tickBits)
	}
	return &ticks
}

// TimeoutsOf is the inverse of Datapath.
func TimeoutsOf(ticks *bpf.ConntrackTimeouts) (t Timeouts) {
	for _, f := range t.flags() {
		*f.timeout = time.Duration(ticks[f.index]) << tickBits
	}
	return t
}

// of returns the timeout of a flow in a state. oneSided: it is a flow by DSR, of which only the client's packets are
// seen.
func (t *Timeouts) of(protocol uint8, state State, oneSided bool) time.Duration {
	tcp := protocol != unix.IPPROTO_UDP
	switch {
	case state == bpf.ConntrackClosed:
		return t.TCPClose
	case state == bpf.ConntrackClosing && oneSided:
		return t.TCPCloseDSR
	case state == bpf.ConntrackClosing:
		return t.TCPCloseWait
	case state <= bpf.ConntrackReplied && tcp:
		return t.TCPUnreplied
	case state <= bpf.ConntrackReplied:
		return t.UDPUnreplied
	case tcp:
		return t.TCPEstablished
	}
	return t.UDPStream
}

// shortest returns the shortest possible timeout of a flow with a known entry: if the other entry has a
// FIN, too, the flow is closed.
func (t *Timeouts) shortest(protocol uint8, e *Entry) time.Duration {
	timeout := t.of(protocol, State(e.State), e.IsOneSided())
	if State(e.State) == bpf.ConntrackClosing && !e.IsOneSided() {
		return min(timeout, t.TCPClose)
	}
	return timeout
}

// Established returns the timeout of an established flow of a protocol.
func (t *Timeouts) Established(protocol uint8) time.Duration {
	return t.of(protocol, bpf.ConntrackEstablished, false)
}

// expired reports whether a flow has timed out; now is in seconds of CLOCK_MONOTONIC.
func (t *Timeouts) expired(key Tuple, one, other *Entry, now uint32) bool {
	return idle(lastSeen(one, other), now) >= t.of(key.Protocol, StateOf(one, other), one.IsOneSided())
}

// StateOf returns the state of a flow by its two entries; other is nil if it is lost.
func StateOf(one, other *Entry) State {
	if other == nil {
		return State(one.State)
	}
	if one.Flags&other.Flags&uint8(bpf.ConntrackFIN) != 0 {
		return bpf.ConntrackClosed
	}
	return State(max(one.State, other.State))
}

// lastSeen returns the later time of two entries.
func lastSeen(one, other *Entry) uint32 {
	if other != nil && int32(other.LastSeen-one.LastSeen) > 0 {
		return other.LastSeen
	}
	return one.LastSeen
}

// Idle returns the time since the last packet of a flow; other is nil if it is lost.
func Idle(one, other *Entry) time.Duration {
	return idle(lastSeen(one, other), bpf.Now())
}

// idle returns the time since seen, at least 0: a packet may arrive after the clock has been read.
func idle(seen, now uint32) time.Duration {
	return time.Duration(max(int32(now-seen), 0)) * time.Second
}
