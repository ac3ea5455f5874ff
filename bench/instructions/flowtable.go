// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/shortcut/offload/flowtable"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// The sides: a packet of a known flow of UDP over IPv4 through a router with DNAT and SNAT by nft, less what its
// generator and the way to the router need.
const (
	sideRouter    = "router, DNAT and SNAT by nft"
	sideFlowtable = "the same by a flowtable"
)

// flowtablePackets are so many that the work of kernel threads and of the Go runtime hardly matters.
const flowtablePackets = 1 << 14

// A flowtableRig is a world of the offload self-test, whose server drops what arrives, with one flow.
type flowtableRig struct {
	*selftest.World
	flow   *selftest.Flow
	detach func() error
}

// countFlowtable counts instructions of both sides, in turns.
func countFlowtable(ctx context.Context, b *harness.Bench, each time.Duration) error {
	stack, err := newFlowtableRig(ctx, false)
	if err != nil {
		return err
	}
	defer stack.end()
	short, err := newFlowtableRig(ctx, true)
	if err != nil {
		return err
	}
	defer short.end()
	for _, r := range []*flowtableRig{stack, short} {
		if err := drop(r.Server, selftest.HostDevice); err != nil {
			return err
		}
	}
	for range min(b.Runs, rounds) {
		if err := countFlowtableRound(b, each, stack, short); err != nil {
			return err
		}
	}
	return nil
}

func newFlowtableRig(ctx context.Context, shortened bool) (r *flowtableRig, err error) {
	r = &flowtableRig{}
	if r.World, err = selftest.NewWorld(); err != nil {
		return nil, err
	}
	if err := r.open(ctx, shortened); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// open opens the flow, after the flowtable: conntrack does not count the packets of earlier ones.
func (r *flowtableRig) open(ctx context.Context, shortened bool) (err error) {
	if shortened {
		p := &flowtable.Prover{Log: slog.Default()}
		if err := p.Attach(r.Router, []string{selftest.ClientDevice, selftest.ServerDevice}, 1); err != nil {
			return err
		}
		r.detach = p.Detach
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if r.flow, err = r.Open(ctx, selftest.Kind{Network: "udp", Translation: selftest.Both}); err != nil {
		return err
	}
	defer r.flow.Conn.SetDeadline(time.Time{})
	if shortened {
		return r.AwaitShortcut(ctx, r.flow, 1)
	}
	return r.flow.Exchange(10)
}

func (r *flowtableRig) end() {
	if r.flow != nil {
		r.flow.Close()
	}
	if r.detach != nil {
		_ = r.detach() // the namespace ends now
	}
	r.Close()
}

// drop drops packets where they enter a device, before the hooks of netfilter.
func drop(at *netns.Namespace, device string) error {
	return at.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if err := netlink.QdiscAdd(clsact(link)); err != nil {
			return fmt.Errorf("clsact at %s: %w", device, err)
		}
		err = netlink.FilterAdd(&netlink.MatchAll{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_IP},
			Actions:     []netlink.Action{&netlink.GenericAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_SHOT}}},
		})
		if err != nil {
			return fmt.Errorf("filter at %s: %w", device, err)
		}
		return nil
	})
}

func clsact(at netlink.Link) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: at.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}
}

// countFlowtableRound adds a sample of each side. The generator is measured with a drop at the router's device.
func countFlowtableRound(b *harness.Bench, each time.Duration, stack, short *flowtableRig) error {
	if err := drop(stack.Router, selftest.ClientDevice); err != nil {
		return err
	}
	generator, err := stack.send(each, 0)
	if err != nil {
		return err
	}
	err = stack.Router.Do(func() error {
		link, err := netlink.LinkByName(selftest.ClientDevice)
		if err != nil {
			return err
		}
		return netlink.QdiscDel(clsact(link))
	})
	if err != nil {
		return err
	}
	for _, side := range []struct {
		name      string
		rig       *flowtableRig
		forwarded uint64
	}{{sideRouter, stack, flowtablePackets}, {sideFlowtable, short, 0}} {
		all, err := side.rig.send(each, side.forwarded)
		if err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		row := result.Row{Series: flowtableSeries(side.name), Metric: MetricInstructions}
		b.Results.Add(row, all-generator)
	}
	return nil
}

func flowtableSeries(side string) result.Series {
	return result.Series{Part: partName, Scenario: "UDP, established, at a router", Side: side, Family: "IPv4"}
}

// printFlowtable prints nothing for results from before there was a flowtable.
func printFlowtable(r *harness.Report, rows []result.Row) {
	of := func(side string) []float64 { return r.Results.Samples(flowtableSeries(side), MetricInstructions) }
	if len(of(sideFlowtable)) == 0 {
		return
	}
	r.Say("\nA flow of UDP over IPv4 through a router: instructions for a packet, less those of its generator\n")
	for _, row := range rows {
		if row.Scenario == flowtableSeries("").Scenario {
			sayInstructions(r, row)
		}
	}
	r.Say("  %-34s by %-34s %s", sideRouter, sideFlowtable, strings.TrimSpace(stat.MedianInterval(stat.Ratios(of(sideRouter), of(sideFlowtable))).String()))
}

// send returns the instructions for a packet, of everything that the machine does. The stack of the router has to
// forward so many of the packets.
func (r *flowtableRig) send(each time.Duration, forwarded uint64) (float64, error) {
	before, err := r.Forwarded()
	if err != nil {
		return 0, err
	}
	begin := forward.Monotonic()
	if err := r.flow.Send(flowtablePackets); err != nil {
		return 0, err
	}
	took := forward.Monotonic() - begin
	after, err := r.Forwarded()
	if err == nil && after-before != forwarded {
		err = fmt.Errorf("the stack has forwarded %d packets of %d, want %d", after-before, flowtablePackets, forwarded)
	}
	return float64(took) / float64(each) / flowtablePackets, err
}
