// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/kernelclock"
	"beeline.io/beeline/internal/util/wakeup"
)

// Programs may add entries to the kernel's conntrack while netfilter may translate sources, and conntrack is at most
// half full, so that they never take room from the node's own flows. They stop by themselves if the agent does not
// renew that.
const (
	kernelRoomEvery = time.Second
	kernelRoomLasts = 10 // seconds
	natEvery        = 10 * time.Second
)

// kernelRoom knows whether programs may add entries.
type kernelRoom struct {
	translates bool // netfilter may translate sources
	read       time.Time
}

// renewKernelRoom tells programs every second whether they may add entries to the kernel's conntrack.
func (r *running) renewKernelRoom(ctx context.Context) error {
	var room kernelRoom
	for running := true; running; running = wakeup.Sleep(ctx, kernelRoomEvery) {
		var until uint32
		if room.is() {
			until = kernelclock.CoarseSeconds() + kernelRoomLasts
		}
		if err := bpf.NewEdgeKernel(r.env.Datapath, r.dispatcher).SetKernelRoom(until); err != nil {
			return err
		}
	}
	return nil
}

// is reads whether programs may add entries. What cannot be read counts as no.
func (k *kernelRoom) is() bool {
	if time.Since(k.read) >= natEvery {
		translates, err := node.TranslatesSources()
		k.translates, k.read = translates && err == nil, time.Now()
	}
	if !k.translates {
		return false
	}
	c, err := node.ReadConntrack()
	return err == nil && c.Entries < c.Max/2
}

// conditions returns what clients are refused, and what the edge does not know of the kernel's flows.
func (r *running) conditions() (all condition.List) {
	r.traffic.mu.Lock()
	all = r.traffic.refusals.conditions()
	r.traffic.mu.Unlock()
	return append(all, r.kernelConditions()...)
}

// kernelConditions are what the edge does not know of the kernel's flows.
func (r *running) kernelConditions() (all condition.List) {
	if why := bpf.NoKernelFlows(); why != "" {
		all = append(all, condition.KernelFlowsUnknown.New("answers to masqueraded pods may reach a Service's backend, because the edge cannot look them up in the kernel's conntrack: %s", why))
	}
	if c, err := node.ReadConntrack(); err == nil && c.Entries > 0 && len(all) == 0 {
		return all // conntrack has the flows of all sockets
	}
	local, err := node.ReadLocalPorts()
	if err != nil {
		return all
	}
	reserved, err := r.env.Datapath.Tables.ReservedPorts.All()
	if err != nil {
		return all
	}
	if ports := autobound(local, maps.Keys(reserved)); ports != "" {
		all = append(all, condition.AutobindMeetsService.New("the kernel may choose %s for UDP sockets of this node that name no port, and a Service or Pod has these ports: sysctl -w net.ipv4.ip_local_reserved_ports=%s",
			ports, strings.Trim(local.ReservedText+","+ports, ",")))
	}
	return all
}

// maxPortRanges is how many ranges of ports a condition lists.
const maxPortRanges = 32

// autobound returns the served ports of UDP that the kernel may choose for a socket, in the form of
// ip_local_reserved_ports; if there are very many ranges, one that contains all.
func autobound(local node.LocalPorts, served iter.Seq[bpf.ReservedPort]) string {
	var ports []uint16
	for p := range served {
		if port := bpf.NetworkOrder(p.Port); p.Protocol == unix.IPPROTO_UDP && local.Has(port) {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	var ranges []bpf.PortRange
	for _, port := range ports {
		if n := len(ranges); n > 0 && int(ranges[n-1].Last)+1 >= int(port) {
			ranges[n-1].Last = port
		} else {
			ranges = append(ranges, bpf.PortRange{First: port, Last: port})
		}
	}
	if n := len(ranges); n > maxPortRanges {
		ranges = []bpf.PortRange{{First: ranges[0].First, Last: ranges[n-1].Last}}
	}
	var texts []string
	for _, r := range ranges {
		text := fmt.Sprint(r.First)
		if r.First != r.Last {
			text = r.String()
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ",")
}
