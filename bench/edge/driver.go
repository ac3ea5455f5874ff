// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/bpf"
)

// A target is a program behind the prelude (enum target in bench/bpf/prelude.h).
type target uint32

const (
	targetNothing target = iota
	targetMinimal
	targetEdge
	targetRecords // only at XDP
)

// A driver runs programs at one hook, each packet with the next frame of a set. It holds the table of programs,
// which is emptied with its last user.
type driver struct {
	collection *ebpf.Collection
	prelude    *ebpf.Program
	context    []uint32
	restores   bool // the prelude restores a packet's length
}

// addDriver loads the prelude for a hook. All drivers share frames and the yardstick's tables.
func (rig *edgeRig) addDriver(hook bpf.EdgeHook, program *ebpf.Program, device, pod, frames uint32) error {
	name, load, shared := string(hook), testrun.LoadCostTC, map[string]*ebpf.Map{}
	// struct __sk_buff: ingress_ifindex, ifindex.
	context := [48]uint32{9: device, 10: device}
	switch hook {
	case bpf.EdgeXDP:
		load = testrun.LoadCostXDP
		context = [48]uint32{3: device} // struct xdp_md: ingress_ifindex
	case bpf.EdgeEgress:
		name, context[9] = hookEgress, pod
	case bpf.EdgeIngress:
		name, context[9] = hookIngress, 0
	}
	spec, err := load()
	if err != nil {
		return err
	}
	spec.Maps[testrun.CostTCMapFrames].MaxEntries = frames
	if records := spec.Maps[testrun.CostXDPMapMinimalRecords]; records != nil {
		records.MaxEntries = rig.flows.Assured.Max()
	}
	for _, other := range rig.drivers {
		shared = maps.Clone(other.collection.Maps)
		maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool {
			return spec.Maps[name] == nil || name == testrun.CostTCMapTargets || name[0] == '.'
		})
	}
	d, err := newDriver(spec, shared, hook == bpf.EdgeXDP, context[:], program)
	if err != nil {
		return err
	}
	rig.open = append(rig.open, closer{d.collection})
	rig.drivers[name], rig.frames = d, d.collection.Maps[testrun.CostTCMapFrames]
	return nil
}

// newDriver loads a prelude with a program in place of the edge. The context is a struct __sk_buff or, with the
// first words, a struct xdp_md.
func newDriver(spec *ebpf.CollectionSpec, shared map[string]*ebpf.Map, xdp bool, context []uint32, program *ebpf.Program) (*driver, error) {
	d := &driver{context: context}
	if xdp {
		d.context, d.restores = context[:6], true
	}
	var err error
	if d.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return nil, err
	}
	d.prelude = d.collection.Programs[testrun.CostTCProgCostPrelude]
	err = errors.Join(d.put(targetNothing, d.collection.Programs[testrun.CostTCProgCostNothing]),
		d.put(targetMinimal, d.collection.Programs[testrun.CostTCProgCostMinimal]), d.put(targetEdge, program))
	if records := d.collection.Programs[testrun.CostXDPProgCostRecords]; records != nil {
		err = errors.Join(err, d.put(targetRecords, records))
	}
	if err != nil {
		d.collection.Close()
	}
	return d, err
}

func (d *driver) put(t target, program *ebpf.Program) error {
	return d.collection.Maps[testrun.CostTCMapTargets].Put(uint32(t), program)
}

// closer adapts a collection to io.Closer.
type closer struct{ *ebpf.Collection }

func (c closer) Close() error { c.Collection.Close(); return nil }

// run runs a program on so many packets, starting with one of the set's frames. It returns the last result, and
// the time of each run, prelude included.
func (d *driver) run(t target, set testrun.FrameSet, next, packets uint32) (verdict uint32, packet []byte, nanoseconds float64, err error) {
	variables, resized := d.collection.Variables, uint32(0)
	if set.Resized && d.restores {
		resized = 1
	}
	for name, value := range map[string]uint32{testrun.CostTCVarTarget: uint32(t), testrun.CostTCVarFirstFrame: set.First,
		testrun.CostTCVarFrameCount: set.Count, testrun.CostTCVarNextFrame: next % set.Count, testrun.CostTCVarResized: resized, testrun.CostTCVarMissed: 0,
		testrun.CostTCVarPacketLength: uint32(len(testrun.Frame{}) + len(set.Rest))} {
		if err := variables[name].Set(value); err != nil {
			return 0, nil, 0, err
		}
	}
	var first testrun.Frame // the kernel reads its Ethernet header before the runs
	if err := d.collection.Maps[testrun.CostTCMapFrames].Lookup(set.First, &first); err != nil {
		return 0, nil, 0, err
	}
	whole, context := slices.Concat(first[:], set.Rest), slices.Clone(d.context)
	if d.restores {
		context[1] = uint32(len(whole)) // data_end
	}
	r := testrun.Run{Program: d.prelude, Packet: whole, Context: context, Repeat: packets}
	if set.Resized && !d.restores {
		verdict, packet, nanoseconds, err = d.oneByOne(r)
	} else {
		verdict, packet, nanoseconds, err = r.Do()
	}
	var missed uint32
	err = errors.Join(err, variables[testrun.CostTCVarMissed].Get(&missed))
	if err == nil && missed > 0 {
		err = fmt.Errorf("%d of %d packets reached no program", missed, packets)
	}
	return verdict, packet, nanoseconds, err
}

// oneByOne does the same with a new packet each time. The time is the kernel's statistics of the program.
func (d *driver) oneByOne(r testrun.Run) (verdict uint32, packet []byte, nanoseconds float64, err error) {
	before, err := d.prelude.Stats()
	if err != nil {
		return 0, nil, 0, err
	}
	packets := r.Repeat
	r.Repeat = 1
	for range packets {
		if verdict, packet, _, err = r.Do(); err != nil {
			return 0, nil, 0, err
		}
	}
	after, err := d.prelude.Stats()
	if err != nil {
		return 0, nil, 0, err
	}
	return verdict, packet, float64((after.Runtime - before.Runtime).Nanoseconds()) / float64(packets), nil
}
