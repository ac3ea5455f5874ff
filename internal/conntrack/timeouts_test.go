// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// Each flag sets the timeout of its state, in the programs and in garbage collection.
func TestTimeoutFlags(t *testing.T) {
	for _, c := range []struct {
		flag     string
		index    bpf.EdgeTCCtTimeout
		protocol uint8
		state    State
		oneSided bool
	}{
		{"conntrack-tcp-timeout-unreplied", bpf.EdgeTCCtTimeoutTIMEOUT_TCP_UNREPLIED, unix.IPPROTO_SCTP, bpf.ConntrackNew, false},
		{"conntrack-tcp-timeout-established", bpf.EdgeTCCtTimeoutTIMEOUT_TCP_ESTABLISHED, tcp, bpf.ConntrackEstablished, false},
		{"conntrack-tcp-timeout-close-wait", bpf.EdgeTCCtTimeoutTIMEOUT_CLOSING, tcp, bpf.ConntrackClosing, false},
		{"conntrack-tcp-timeout-close-wait-dsr", bpf.EdgeTCCtTimeoutTIMEOUT_CLOSING_DSR, tcp, bpf.ConntrackClosing, true},
		{"conntrack-tcp-timeout-close", bpf.EdgeTCCtTimeoutTIMEOUT_CLOSED, tcp, bpf.ConntrackClosed, false},
		{"conntrack-udp-timeout", bpf.EdgeTCCtTimeoutTIMEOUT_UDP_UNREPLIED, udp, bpf.ConntrackReplied, false},
		{"conntrack-udp-timeout-stream", bpf.EdgeTCCtTimeoutTIMEOUT_UDP_STREAM, udp, bpf.ConntrackEstablished, false},
		{"flow-timeout-tcp", bpf.EdgeTCCtTimeoutTIMEOUT_TCP_ESTABLISHED, tcp, bpf.ConntrackEstablished, false},
		{"flow-timeout-udp", bpf.EdgeTCCtTimeoutTIMEOUT_UDP_STREAM, udp, bpf.ConntrackEstablished, false},
	} {
		timeouts := DefaultTimeouts
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.SetOutput(t.Output())
		timeouts.AddFlags(fs)
		want := *DefaultTimeouts.Datapath()
		if err := fs.Parse([]string{"--" + c.flag + "=17m"}); err != nil {
			t.Fatal(err)
		}
		want[c.index] = uint32((17 * time.Minute).Nanoseconds() >> 20)
		if got := *timeouts.Datapath(); got != want {
			t.Errorf("--%s: the programs have %v, want %v", c.flag, got, want)
		}
		if again := TimeoutsOf(timeouts.Datapath()); *again.Datapath() != want {
			t.Errorf("--%s: %v from the programs", c.flag, again)
		}
		if got := timeouts.of(c.protocol, c.state, c.oneSided); got != 17*time.Minute {
			t.Errorf("--%s: garbage collection has %v", c.flag, got)
		}
	}
}

// Timeouts that the programs cannot represent are refused with the name of the flag.
func TestTimeoutsOutOfRange(t *testing.T) {
	if err := DefaultTimeouts.Check(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		timeout time.Duration
		want    string
	}{{999 * time.Millisecond, "at least 1s"}, {0, "at least 1s"}, {25 * 24 * time.Hour, "at most 576h0m0s"}} {
		timeouts := DefaultTimeouts
		for _, f := range timeouts.flags() {
			whole := *f.timeout
			*f.timeout = c.timeout
			if err := timeouts.Check(); err == nil || !strings.Contains(err.Error(), "--"+f.name+" ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("--%s=%v: %v, want %q", f.name, c.timeout, err, c.want)
			}
			*f.timeout = whole
		}
	}
}
