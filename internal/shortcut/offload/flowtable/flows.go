// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/conntrack/kernelct"
)

// StatusHardware is the bit IPS_HW_OFFLOAD of a status of conntrack (linux/netfilter/nf_conntrack_common.h, Linux 5.3).
const StatusHardware = conntrack.Status(1 << 15)

// A Flow is a flow in a flowtable of this namespace, Beeline's or another one.
type Flow struct {
	// ID is conntrack's; Choose takes it.
	ID       uint32
	Protocol uint8
	// Source and Destination are those of the first packet; ReplySource and ReplyDestination those of its answers
	// as they arrive. They differ with NAT.
	Source, Destination, ReplySource, ReplyDestination netip.AddrPort
	// Hardware: the NIC forwards it.
	Hardware bool
	// Packets and octets as conntrack counts them, of both directions, with those that passed the stack. Octets
	// are from the IP header on.
	Packets, Octets uint64
}

// Flows returns the flows that are in a flowtable now.
func (f *Flowtable) Flows() (all []Flow, err error) {
	err = f.do(func() error {
		c, err := conntrack.Dial(&netlink.Config{})
		if err != nil {
			return err
		}
		defer c.Close()
		entries, err := c.DumpFilter(conntrack.NewFilter().Status(conntrack.StatusOffload), nil)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Status&conntrack.StatusOffload != 0 { // kernels before 5.15 do not filter
				all = append(all, flowOf(&e))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the flows of the flowtable by conntrack: %w", err)
	}
	return all, nil
}

func flowOf(e *conntrack.Flow) Flow {
	there, back := kernelct.FlowOf(&e.TupleOrig), kernelct.FlowOf(&e.TupleReply)
	return Flow{
		ID: e.ID, Protocol: there.Protocol,
		Source: there.Source, Destination: there.Destination, ReplySource: back.Source, ReplyDestination: back.Destination,
		Hardware: e.Status&StatusHardware != 0,
		Packets:  e.CountersOrig.Packets + e.CountersReply.Packets,
		Octets:   e.CountersOrig.Bytes + e.CountersReply.Bytes,
	}
}

// Choose names flows, by conntrack's IDs, that may be taken in the next minute. It matters with Config.OnlyChosen.
func (f *Flowtable) Choose(ids ...uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config == nil || !f.config.OnlyChosen {
		return nil
	}
	var elements []nftables.SetElement
	for _, id := range ids {
		elements = append(elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint32(id)})
	}
	err := f.batch(func(c *nftables.Conn) error {
		for _, t := range f.tables() {
			set := &nftables.Set{Table: t, Name: chosenSet, KeyType: nftables.TypeMark, HasTimeout: true}
			if err := addElements(c, set, elements); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("choose flows for the flowtable: %w", err)
	}
	return nil
}

// Status is the state of the flowtables, and what has happened to them.
type Status = api.Flowtable

// Status returns the present status; without an earlier Apply it is empty.
func (f *Flowtable) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config == nil {
		return Status{}
	}
	return Status{
		FlowtableReport: f.report, NextHops: len(f.network.hops(f.devices).valid), Replaced: maps.Clone(f.status.replaced), LastReplaced: f.status.last,
	}
}
