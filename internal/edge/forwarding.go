// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/netdev"
	"beeline.io/beeline/internal/service"
)

// Forward sets the families of which packets must be forwarded now, to backends other than the node itself;
// sorted.
func (e *Edge) Forward(families []service.Family) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.forwards, families) {
		e.forwards = slices.Clone(families)
		e.changed.Send()
	}
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
	for _, family := range e.forwards {
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
	problems := e.forwardingProblems(e.forwards)
	for _, p := range problems {
		if !slices.Contains(e.forwarding, p) {
			e.config.Log.Error("the edge: " + p.Text())
		}
	}
	if len(e.forwarding) > 0 && len(problems) == 0 {
		e.config.Log.Info("the edge: " + e.whyForwardingEnded())
	}
	if len(problems) > 0 {
		e.notForwarded = e.forwards
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
