// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/util/wakeup"
)

// lacks is what the kernel lacks for a test.
type lacks string

func (l lacks) Error() string { return "needs " + string(l) }

// inNamespace runs f in a network namespace of its own, on another goroutine: f returns errors, and lacks to skip.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	n, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	err = n.Do(f)
	if missing := lacks(""); errors.As(err, &missing) {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ip runs ip(8).
func ip(arguments string) error {
	if out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", arguments, err, out)
	}
	return nil
}

// Each policy that does more than allow is read with all that it matches; those that allow, and those of sockets, are
// none. A default action that blocks is one for both families.
func TestXFRMPolicies(t *testing.T) {
	inNamespace(t, func() error {
		n, err := Follow()
		if err != nil {
			return err
		}
		for _, c := range []struct {
			do   string
			want []string
		}{
			{"xfrm policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16", nil},
			{"xfrm policy add dir fwd src 10.1.0.0/16 dst 10.2.0.0/16 action block", []string{"XFRM policy dir fwd src 10.1.0.0/16 dst 10.2.0.0/16: block"}},
			{"xfrm policy add dir out src fd00:1::/64 dst ::/0 proto tcp sport 80 dport 443 mark 5 mask 0xff if_id 7 tmpl proto ah mode transport tmpl src fd00::1 dst fd00::2 proto esp mode tunnel",
				[]string{"XFRM policy dir out src fd00:1::/64 dst ::/0 proto 6 sport 80 dport 443 mark 0x5/0xff if_id 0x7: ah transport, esp tunnel"}},
			{"xfrm policy add dir in src 0.0.0.0/0 dst 10.2.0.1/32 ptype sub tmpl proto esp mode transport level use", []string{"XFRM policy dir in src 0.0.0.0/0 dst 10.2.0.1/32: esp transport"}},
			{"xfrm policy setdefault out block", []string{"XFRM default policy dir out: block", "XFRM default policy dir out: block"}},
			{"xfrm policy setdefault out accept", nil},
			{"xfrm policy flush ptype sub", nil},
			{"xfrm policy flush", nil},
		} {
			if err := ip(c.do); err != nil {
				return err
			}
			all, err := n.XFRMPolicies()
			if err != nil {
				return err
			}
			var got []string
			for _, p := range all {
				got = append(got, p.String())
			}
			for _, want := range c.want {
				if !slices.Contains(got, want) {
					t.Errorf("after %q: %q; want %q", c.do, got, want)
				}
			}
			if flushed := strings.HasSuffix(c.do, "flush"); flushed && len(got) > 0 {
				t.Errorf("after %q: %q", c.do, got)
			}
		}
		return nil
	})
}

// A policy matches by addresses, protocol and the bits of ports below the mask.
func TestXFRMPolicyMatches(t *testing.T) {
	p := XFRMPolicy{
		Source: netip.MustParsePrefix("10.1.0.0/16"), Destination: netip.MustParsePrefix("10.2.0.1/32"), Protocol: 6,
		DestinationPort: XFRMPorts{0x1230, 0xfff0},
	}
	for _, c := range []struct {
		source, destination string
		protocol            uint8
		want                bool
	}{
		{"10.1.2.3:1", "10.2.0.1:4667", 6, true}, // 0x123b
		{"10.1.2.3:1", "10.2.0.1:4672", 6, false},
		{"10.1.2.3:1", "10.2.0.1:4667", 17, false},
		{"10.3.2.3:1", "10.2.0.1:4667", 6, false},
		{"10.1.2.3:1", "10.2.0.2:4667", 6, false},
		{"[fd00::1]:1", "[fd00::2]:4667", 6, false},
	} {
		if got := p.Matches(netip.MustParseAddrPort(c.source), netip.MustParseAddrPort(c.destination), c.protocol); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// The watcher notices added and deleted policies, a flush and a change of default actions.
func TestWatchXFRMPolicies(t *testing.T) {
	inNamespace(t, func() error {
		return wantNoticed(t, func(n *Network, changed wakeup.Signal) { n.Notify(changed, XFRM) },
			"xfrm policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16 action block", "xfrm policy delete dir out src 10.1.0.0/16 dst 10.2.0.0/16",
			"xfrm policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16", "xfrm policy flush", "xfrm policy setdefault fwd block", "xfrm policy setdefault fwd accept")
	})
}

// wantNoticed checks that a signal is sent at the start, and after each of some commands of ip(8).
func wantNoticed(t *testing.T, notify func(*Network, wakeup.Signal), commands ...string) error {
	t.Helper()
	n, err := Follow()
	if err != nil {
		return err
	}
	changed := wakeup.NewSignal()
	notify(n, changed)
	var loop sync.WaitGroup
	defer loop.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loop.Go(func() { _ = n.Run(ctx) })
	<-changed // the start
	for _, do := range commands {
		if err := ip(do); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Errorf("not noticed: ip %s", do)
		}
	}
	return nil
}
