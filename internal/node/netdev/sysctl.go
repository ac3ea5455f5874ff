// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SysctlRoot is the directory of this network namespace's settings.
const SysctlRoot = "/proc/sys/net"

// A Sysctl is the path of a setting relative to SysctlRoot.
type Sysctl string

// String returns the name that sysctl(8) takes: a dot in a device's name becomes a slash.
func (s Sysctl) String() string {
	parts := strings.Split(string(s), "/")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], ".", "/")
	}
	return "net." + strings.Join(parts, ".")
}

// forwardingOf returns the settings that must be 1 for the kernel to forward packets of a family that
// arrive by one of the devices. The first one sets all others.
func forwardingOf(ipv6 bool, devices []string) []Sysctl {
	all, of := []Sysctl{"ipv4/ip_forward"}, Sysctl("ipv4/conf/")
	if ipv6 {
		all, of = []Sysctl{"ipv6/conf/all/forwarding"}, "ipv6/conf/"
	}
	for _, d := range devices {
		all = append(all, of+Sysctl(d)+"/forwarding")
	}
	return all
}

// ForwardingOff returns the settings that are 0 and have to be set, in this order: a device's setting only if the
// first one does not set it.
func ForwardingOff(root string, ipv6 bool, devices []string) []Sysctl {
	all := forwardingOf(ipv6, devices)
	off := slices.DeleteFunc(slices.Clone(all[1:]), func(s Sysctl) bool { return !isZero(root, s) })
	everywhere := isZero(root, all[0])
	switch {
	case everywhere && (len(off) > 0 || ipv6): // for IPv6 the kernel looks at both
		return all[:1]
	default:
		return off
	}
}

// isZero reports whether a setting exists and is 0: without IPv6 its settings do not exist.
func isZero(root string, s Sysctl) bool {
	text, err := os.ReadFile(filepath.Join(root, string(s)))
	return err == nil && strings.TrimSpace(string(text)) == "0"
}

// Set writes a setting below root.
func (s Sysctl) Set(root, value string) error {
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
			errs = append(errs, Sysctl(name).Set(root, "2"))
		}
	}
	return errs
}

// SetForwarding sets settings to 1.
func SetForwarding(root string, ipv6 bool, off []Sysctl) error {
	var errs []error
	if ipv6 && len(off) > 0 {
		errs = keepRouterAdvertisements(root)
	}
	for _, s := range off {
		errs = append(errs, s.Set(root, "1"))
	}
	return errors.Join(errs...)
}
