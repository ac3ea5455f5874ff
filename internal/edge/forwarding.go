// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/service"
)

// sysctlRoot is the directory of this network namespace's settings.
const sysctlRoot = "/proc/sys/net"

// sysctl is the path of a setting relative to sysctlRoot.
type sysctl string

// String returns the name that sysctl(8) takes: a dot in a device's name becomes a slash.
func (s sysctl) String() string {
	parts := strings.Split(string(s), "/")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], ".", "/")
	}
	return "net." + strings.Join(parts, ".")
}

// forwardingOf returns the settings that must be 1 for the kernel to forward packets of a family that
// arrive by one of the devices. The first one sets all others.
func forwardingOf(family service.Family, devices []string) []sysctl {
	all, of := []sysctl{"ipv4/ip_forward"}, sysctl("ipv4/conf/")
	if family == service.IPv6 {
		all, of = []sysctl{"ipv6/conf/all/forwarding"}, "ipv6/conf/"
	}
	for _, d := range devices {
		all = append(all, of+sysctl(d)+"/forwarding")
	}
	return all
}

// forwardingOff returns the settings that are 0 and have to be set, in this order: a device's setting only
// if the first one does not set it.
func forwardingOff(root string, family service.Family, devices []string) []sysctl {
	all := forwardingOf(family, devices)
	off := slices.DeleteFunc(slices.Clone(all[1:]), func(s sysctl) bool { return !isZero(root, s) })
	everywhere := isZero(root, all[0])
	switch {
	case everywhere && (len(off) > 0 || family == service.IPv6): // for IPv6 the kernel checks both
		return all[:1]
	default:
		return off
	}
}

// isZero reports whether a setting exists and is 0: without IPv6 its settings do not exist.
func isZero(root string, s sysctl) bool {
	text, err := os.ReadFile(filepath.Join(root, string(s)))
	return err == nil && strings.TrimSpace(string(text)) == "0"
}

func (s sysctl) set(root, value string) error {
	if err := os.WriteFile(filepath.Join(root, string(s)), []byte(value), 0o644); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", s, value, errors.Unwrap(err))
	}
	return nil
}

// keepRouterAdvertisements lets devices that use router advertisements continue to do so: a router ignores
// them unless accept_ra is 2.
func keepRouterAdvertisements(root string) (errs []error) {
	found, _ := filepath.Glob(filepath.Join(root, "ipv6/conf/*/accept_ra"))
	for _, path := range found {
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		if err == nil && strings.TrimSpace(string(text)) == "1" {
			errs = append(errs, sysctl(name).set(root, "2"))
		}
	}
	return errs
}

// setForwarding sets settings to 1.
func setForwarding(root string, family service.Family, off []sysctl) error {
	var errs []error
	if family == service.IPv6 && len(off) > 0 {
		errs = keepRouterAdvertisements(root)
	}
	for _, s := range off {
		errs = append(errs, s.set(root, "1"))
	}
	return errors.Join(errs...)
}

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
		off := forwardingOff(e.sysctls, family, e.forwardingDevices())
		if len(off) == 0 || !e.config.SetSysctls {
			continue
		}
		if err := setForwarding(e.sysctls, family, off); err != nil {
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
		e.config.Log.Info("the edge: the kernel forwards packets again")
	}
	e.forwarding = problems
}

// forwardingProblems returns the conditions of sysctls that prevent forwarding to backends.
func (e *Edge) forwardingProblems(families []service.Family) (all condition.List) {
	for _, family := range families {
		off := forwardingOff(e.sysctls, family, e.forwardingDevices())
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
