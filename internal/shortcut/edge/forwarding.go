// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
)

// Forward sets the families of which packets must be forwarded now, to backends other than the node itself; sorted.
// Of those in decapsulates that is so only if clients' packets arrive here: all such backends are other machines' of
// Services of which this node itself decapsulates what balancers send.
func (e *Edge) Forward(families, decapsulates []service.Family) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.forwards, families) || !slices.Equal(e.decapsulates, decapsulates) {
		e.forwards, e.decapsulates = slices.Clone(families), slices.Clone(decapsulates)
		e.changed.Send()
	}
}

// droppedForForwarding is the counter of packets that the kernel does not forward (enum edge_reason).
const droppedForForwarding = "drop_forwarding"

// noteForwardingDrops handles a reading of that counter.
func (e *Edge) noteForwardingDrops(count uint64, now time.Time) {
	before := e.forwardingDrops.Recent(now)
	e.forwardingDrops.Note(count, now)
	if len(e.decapsulates) > 0 && e.forwardingDrops.Recent(now) != before {
		e.changed.Send()
	}
}

// forwardsNow returns the families of which packets must be forwarded.
func (e *Edge) forwardsNow(now time.Time) []service.Family {
	if !e.forwardingDrops.Recent(now) {
		return e.forwards
	}
	all := slices.Concat(e.forwards, e.decapsulates)
	slices.Sort(all)
	return slices.Compact(all)
}

// forwardingDevices returns the names of the devices that clients and backends are behind, sorted.
func (e *Edge) forwardingDevices() (names []string) {
	for _, a := range e.devices {
		if !a.Draining {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

// noteForwarding sets the sysctls that are off, if it may, and logs the others once.
func (e *Edge) noteForwarding() {
	families := e.forwardsNow(time.Now())
	for _, family := range families {
		off := netdev.ForwardingOff(e.sysctls, family == service.IPv6, e.forwardingDevices())
		if len(off) == 0 || !e.config.SetSysctls {
			continue
		}
		if err := netdev.SetForwarding(e.sysctls, family == service.IPv6, off); err != nil {
			e.report(condition.SysctlNotSet.New("--set-sysctls: %v", err))
			continue
		}
		e.config.Log.Warn("set sysctls, so that the kernel forwards packets", "set", fmt.Sprint(off))
	}
	problems := e.forwardingProblems(families)
	e.logNew(problems, e.forwarding)
	if len(e.forwarding) > 0 && len(problems) == 0 {
		e.config.Log.Info("the edge: " + e.whyForwardingEnded())
	}
	if len(problems) > 0 {
		e.notForwarded = families
	}
	e.forwarding = problems
}

// whyForwardingEnded says why the conditions have ended: sysctls may still be off if no backend needs them.
func (e *Edge) whyForwardingEnded() string {
	if len(e.forwardingProblems(e.notForwarded)) > 0 {
		return "forwarding is still off in the kernel, but no Service has a backend that needs it now"
	}
	return "the kernel forwards packets again"
}

// forwardingProblems returns the conditions of sysctls that prevent forwarding to backends.
func (e *Edge) forwardingProblems(families []service.Family) (all condition.List) {
	for _, family := range families {
		off := netdev.ForwardingOff(e.sysctls, family == service.IPv6, e.forwardingDevices())
		if len(off) == 0 {
			continue
		}
		names := make([]string, len(off))
		for i, s := range off {
			names[i] = s.String() + "=1"
		}
		all = append(all, condition.ForwardingOff.New("%s is not forwarded, and no external client reaches a backend other than this node itself", family).
			Do("run sysctl -w %s, write the same to a file in /etc/sysctl.d, or start the agent with --set-sysctls", strings.Join(names, " ")))
	}
	return all.Sort()
}
