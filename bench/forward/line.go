// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// A Line is the link between the fabric and a balancer. Client and receiver are at the fabric's end: the
// generator, which sends into the link, and the sink, which receives from it. The balancer's end has a CPU of
// its own.
type Line struct {
	world        *harness.World
	balancer     *lab.Host
	far, Near    int // devices: the fabric's, the balancer's
	own, gateway [6]byte
	collection   *ebpf.Collection
	thread       napiThread // of the balancer's end
	sink         napiThread // of the fabric's end
	cpu          int        // of generator and sink
	Flows        uint32     // of each side
}

const (
	Flows = 4096
	sets  = 3 // Services of a line
	// Size of an agent's conntrack table; it is the default with much memory. All flows are half open at
	// first, and a quarter of this is for those: with an eighth of the places in use, one is evicted by
	// chance in one table of four million, with a quarter in one of 400.
	records = 64 * Flows
	// Packets of the window are in two queues of 256 each (VETH_RING_SIZE).
	window = 192
	// Runs of the generator between checks of its progress: few for a number of packets, and about a
	// slice's for a time. Starting again takes the kernel milliseconds.
	runs, runsOfSlice = 1 << 14, 1 << 19

	Rounds           = 7 // at most
	SliceLength      = 60 * time.Millisecond
	SliceLengthSmoke = 5 * time.Millisecond
	// After so long without a packet, the rest is lost. On a busy machine a CPU has paused for more than
	// two seconds, even for work that precedes processes.
	ratePatience = 30 * time.Second
)

// NewLine prepares the link of a node: its ends' threads, the sink, and the balancer's end without an XDP
// program.
func NewLine(ctx context.Context, w *harness.World, name string, cpus result.CPUPair, flows uint32) (l *Line, err error) {
	fabric := w.Host("fabric")
	l = &Line{world: w, balancer: w.Host(name), cpu: cpus.Client, Flows: flows}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.end())
		}
	}()
	far, err := harness.DeviceOf(fabric, name)
	if err != nil {
		return l, err
	}
	near, err := harness.DeviceOf(l.balancer, "eth0")
	if err != nil {
		return l, err
	}
	if err := rememberLong(l.balancer); err != nil {
		return l, err
	}
	l.far, l.Near = far.Index, near.Index
	l.own, l.gateway = [6]byte(near.HardwareAddr), [6]byte(far.HardwareAddr)
	if err := harness.SetNeighbour(l.balancer, l.Near, harness.Gateways["IPv4"], far.HardwareAddr); err != nil {
		return l, err
	}
	if err := l.load(); err != nil {
		return l, err
	}
	if err := errors.Join(l.balancer.GRO("eth0"), l.setXDP(fabric, l.far, RatesProgRatesSink)); err != nil {
		return l, err
	}
	if l.sink, err = newNAPIThread(ctx, fabric, name, l.far, cpus.Client); err != nil {
		return l, err
	}
	if err := restless(ctx, fabric, name); err != nil {
		return l, err
	}
	l.thread, err = newNAPIThread(ctx, l.balancer, "eth0", l.Near, cpus.Server)
	return l, err
}

// rememberFor is the timeout of UDP flows, by Beeline and by the kernel: longer than a run takes. The defaults
// are half a minute, and two minutes once they are established: on a busy machine less than until their turn.
const rememberFor = 24 * time.Hour

// rememberLong sets the timeout of UDP flows in a host's connection tracking, if the kernel has one.
func rememberLong(host *lab.Host) error {
	const folder = "/proc/sys/net/netfilter/"
	seconds := strconv.Itoa(int(rememberFor.Seconds()))
	return host.Do(func() error {
		for _, name := range []string{"nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"} {
			if err := os.WriteFile(folder+name, []byte(seconds), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("host %s: %w", host.Name, err)
			}
		}
		return nil
	})
}

func (l *Line) end() error {
	if l.collection != nil {
		l.collection.Close()
	}
	return nil
}

func (l *Line) load() error {
	spec, err := LoadRates()
	if err != nil {
		return err
	}
	spec.Maps[RatesMapRateFrames].MaxEntries = (1 + sets) * l.Flows
	spec.Maps[RatesMapRateKept].MaxEntries = l.Flows
	spec.Maps[RatesMapMinimalRecords].MaxEntries = bpf.DefaultLimits.Flows
	if err := setOuterSource(spec, l.balancer.Addr4); err != nil {
		return err
	}
	l.collection, err = ebpf.NewCollection(spec)
	return err
}

// setXDP replaces the XDP program with one of the line's; "" for none.
func (l *Line) setXDP(host *lab.Host, device int, program string) error {
	fd := -1
	if program != "" {
		fd = l.collection.Programs[program].FD()
	}
	return host.Do(func() error {
		link, err := netlink.LinkByIndex(device)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetXdpFdWithFlags(link, fd, nl.XDP_FLAGS_DRV_MODE); err != nil {
			return fmt.Errorf("XDP program %q at %s: %w", program, link.Attrs().Name, err)
		}
		return nil
	})
}

// write writes frames of segments into the table of frames, from the client to the balancer.
func (l *Line) write(first uint32, all []testrun.Segment) error {
	keys, frames := make([]uint32, len(all)), make([]testrun.Frame, len(all))
	for i, s := range all {
		keys[i], frames[i] = first+uint32(i), s.Frame(l.gateway, l.own)
	}
	_, err := l.collection.Maps[RatesMapRateFrames].BatchUpdate(keys, frames, nil)
	return err
}

// A Burst is packets to send.
type Burst struct {
	Set     testrun.FrameSet
	Packets uint64
	Pace    time.Duration // from one packet to the next; 0: as fast as they are accepted
	Like    RatesLikeness // pattern of returning packets
	keep    uint32        // how many of those to keep
	Limit   time.Duration // after which sending stops; 0: all are sent
}

// An Outcome is the result of a burst.
type Outcome struct {
	Sent, arrived, Strange uint64
	Took                   time.Duration // from the first one sent to the last one back
	CPU                    time.Duration // of the balancer's end
}

// Run sends a burst, and returns when all packets are back.
func (l *Line) Run(ctx context.Context, b Burst) (o Outcome, err error) {
	if err := l.collection.Maps[RatesMapRateLikeness].Put(uint32(0), b.Like); err != nil {
		return o, err
	}
	// As fast as they are accepted: a whole window at once, so that the balancer wakes up for many, as with
	// an endless stream. At a pace: each when it is due.
	low := uint64(0)
	if b.Pace > 0 {
		low = window - 1
	}
	if err := l.set(map[string]any{
		RatesVarLow: low, RatesVarWaiting: uint32(0),
		RatesVarDevice: uint32(l.far), RatesVarFirstFrame: b.Set.First, RatesVarFrameCount: b.Set.Count, RatesVarNextFrame: uint32(0),
		RatesVarWanted: b.Packets, RatesVarWindow: uint64(window), RatesVarInterval: uint64(b.Pace.Nanoseconds()),
		RatesVarSent: uint64(0), RatesVarKnown: uint64(0), RatesVarArrived: uint64(0), RatesVarStrange: uint64(0), RatesVarKeep: b.keep,
	}); err != nil {
		return o, err
	}
	before, err := l.thread.time()
	if err != nil {
		return o, err
	}
	if err := l.world.Host("fabric").Do(func() error { return l.generate(ctx, b, &o) }); err != nil {
		return o, err
	}
	after, err := l.thread.time()
	o.CPU = after - before
	return o, err
}

func (l *Line) set(values map[string]any) error {
	for name, value := range values {
		if err := l.collection.Variables[name].Set(value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// generate runs on a thread of the fabric's namespace, which occupies the line's CPU.
func (l *Line) generate(ctx context.Context, b Burst, o *Outcome) error {
	var before, own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	own.Set(l.cpu)
	if err := unix.SchedSetaffinity(0, &own); err != nil {
		return err
	}
	defer unix.SchedSetaffinity(0, &before)
	// The sink has a higher priority and must be able to preempt it.
	if err := beforeProcesses(0, 1); err != nil {
		return fmt.Errorf("generator before processes: %w", err)
	}
	defer beforeProcesses(0, 0)
	var empty testrun.Frame
	batch := uint32(window)
	if b.Pace > 0 {
		batch = 64
	}
	run := testrun.Run{Program: l.collection.Programs[RatesProgRatesGenerate], Packet: empty[:], Repeat: runs}
	limit := uint64(math.MaxInt64)
	if b.Limit > 0 {
		limit, run.Repeat = uint64(b.Limit), uint32(max(runs, runsOfSlice*b.Limit/SliceLength))
	}
	if err := l.set(map[string]any{RatesVarBegin: uint64(0), RatesVarLimit: limit, RatesVarLatest: uint64(0)}); err != nil {
		return err
	}
	for last, moved := uint64(0), Monotonic(); ; {
		if err := run.DoLive(batch); err != nil {
			return err
		}
		wanted, err := l.read(o)
		if err != nil {
			return err
		}
		back, now := o.arrived+o.Strange, Monotonic()
		if o.Sent == back && o.Sent >= wanted { // wanted is 0 when the time is over
			return ctx.Err()
		}
		if o.Sent+back != last {
			last, moved = o.Sent+back, now
		}
		if now-moved > ratePatience || ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%[2]d of %[1]d sent packets have returned, and no more arrive", o.Sent, back))
		}
	}
}

// read returns how many packets are to be sent.
func (l *Line) read(o *Outcome) (wanted uint64, err error) {
	var begin, latest uint64
	v := l.collection.Variables
	err = errors.Join(v[RatesVarWanted].Get(&wanted), v[RatesVarSent].Get(&o.Sent), v[RatesVarArrived].Get(&o.arrived), v[RatesVarStrange].Get(&o.Strange),
		v[RatesVarBegin].Get(&begin), v[RatesVarLatest].Get(&latest))
	o.Took = time.Duration(latest - begin)
	return wanted, err
}

// kept are the packets of the last burst that the sink has kept.
func (l *Line) kept(count uint64) (all [][]byte, err error) {
	for i := range uint32(count) {
		var k RatesKept
		if err := l.collection.Maps[RatesMapRateKept].Lookup(i, &k); err != nil {
			return nil, err
		}
		all = append(all, k.Bytes[:k.Length])
	}
	return all, nil
}

// Monotonic is the clock of bpf_ktime_get_ns.
func Monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return time.Duration(t.Nano())
}
