// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ErrUnavailable means that the kernel has no flowtables, or that this process may not create one.
var ErrUnavailable = errors.New("the flowtable is not available")

// unavailable explains why a flowtable cannot be created.
func unavailable(err error) error {
	why := ""
	switch {
	case errors.Is(err, unix.ENOENT):
		why = "the kernel has no modules nf_flow_table_inet and nft_flow_offload (CONFIG_NF_FLOW_TABLE, CONFIG_NFT_FLOW_OFFLOAD)"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		why = "the kernel's nf_tables has none, or there is no nf_tables"
	case errors.Is(err, unix.EPERM):
		why = "this process has no CAP_NET_ADMIN"
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %s: %s", ErrUnavailable, why, kernelError(err))
}

// refusedExternal is why a tunnel in external mode is not in the flowtable.
const refusedExternal = "it is a tunnel in external mode: the kernel (seen with Linux 6.12) loses memory for each packet that a flowtable takes from it"

// choose selects the devices of the configuration. Those of the earlier report are known to be accepted: a driver may
// refuse a second flowtable while there is Beeline's first one.
func (f *Flowtable) choose(n *network, c Config, earlier Report) (Report, error) {
	r := Report{RefusedDevices: map[string]string{}, RefusedHardwareDevices: map[string]string{}}
	others, err := f.othersFlowtables()
	if err != nil {
		return r, err
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(c.Devices))) {
		switch l, ok := n.named(name); {
		case !ok:
			r.RefusedDevices[name] = "there is no such device"
		case l.External:
			r.RefusedDevices[name] = refusedExternal
		case others[name] != "":
			r.RefusedDevices[name] = "it is in " + others[name]
		default:
			r.SoftwareDevices = append(r.SoftwareDevices, name)
		}
	}
	if err := f.chooseSoftware(&r, earlier.SoftwareDevices); err != nil {
		return r, err
	}
	if c.Hardware {
		err = f.chooseHardware(&r, earlier.HardwareDevices)
	}
	return r, err
}

// chooseSoftware drops devices that the kernel refuses. If it accepts all, or has no flowtable, one attempt says so.
func (f *Flowtable) chooseSoftware(r *Report, known []string) error {
	untested := func(name string) bool { return !slices.Contains(known, name) }
	if len(known) > 0 && !slices.ContainsFunc(r.SoftwareDevices, untested) || f.try(r.SoftwareDevices, false) == nil {
		return nil
	}
	if err := f.try(nil, false); err != nil {
		return unavailable(err)
	}
	r.SoftwareDevices = f.singly(r.SoftwareDevices, false, r.RefusedDevices)
	return nil
}

func (f *Flowtable) chooseHardware(r *Report, known []string) error {
	var untested []string
	for _, name := range r.SoftwareDevices {
		if slices.Contains(known, name) {
			r.HardwareDevices = append(r.HardwareDevices, name)
		} else {
			untested = append(untested, name)
		}
	}
	r.HardwareDevices = append(r.HardwareDevices, f.singly(untested, true, r.RefusedHardwareDevices)...)
	return nil
}

// singly tries devices one by one, because one that is refused has the kernel reject the whole transaction.
func (f *Flowtable) singly(names []string, hardware bool, refused map[string]string) (accepted []string) {
	for _, name := range names {
		if err := f.try([]string{name}, hardware); err != nil {
			refused[name] = refusal(err, hardware)
			continue
		}
		accepted = append(accepted, name)
	}
	return accepted
}

func refusal(err error, hardware bool) string {
	what := "the kernel refuses it"
	switch {
	case hardware && errors.Is(err, unix.EOPNOTSUPP):
		what = "its driver cannot offload flows"
	case hardware:
		what = "its driver refuses to offload flows"
	}
	return fmt.Sprintf("%s: %s", what, kernelError(err))
}

// kernelError is the errno of an error with its name: EOPNOTSUPP (operation not supported).
func kernelError(err error) string {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	name := unix.ErrnoName(errno)
	if errno == unix.EOPNOTSUPP {
		name = "EOPNOTSUPP" // has the number of ENOTSUP
	}
	return fmt.Sprintf("%s (%s)", name, errno.Error())
}

// probeTable has a flowtable for the time of an attempt only.
var probeTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: ProbeTableName}

// try creates a flowtable for devices, and deletes it again.
func (f *Flowtable) try(devices []string, hardware bool) error {
	return f.with(func(c *nftables.Conn) error {
		remove(c, probeTable)
		c.AddTable(probeTable)
		c.AddFlowtable(flowtable(probeTable, devices, hardware))
		if err := c.Flush(); err != nil {
			return err
		}
		c.DelTable(probeTable)
		return c.Flush()
	})
}

// othersFlowtables returns the devices in flowtables that are not Beeline's, and the flowtable and its table.
func (f *Flowtable) othersFlowtables() (found map[string]string, err error) {
	found = map[string]string{}
	err = f.with(func(c *nftables.Conn) error {
		tables, err := c.ListTables()
		if err != nil {
			return unavailable(fmt.Errorf("list the tables of nftables: %w", err))
		}
		for _, t := range tables {
			if isOwn(t) {
				continue
			}
			all, err := c.ListFlowtables(t)
			if err != nil {
				continue // the table was deleted meanwhile, or the kernel has no flowtables
			}
			for _, ft := range all {
				for _, device := range ft.Devices {
					found[device] = fmt.Sprintf("flowtable %s of table %s %s%s", ft.Name, familyName(t.Family), t.Name, owner(t.Name))
				}
			}
		}
		return nil
	})
	return found, err
}

// formerTables are the tables of versions in which flow offload was called gateway.
var formerTables = []string{"beeline_gateway", "beeline_gateway_hardware"}

func isOwn(t *nftables.Table) bool {
	return t.Family == nftables.TableFamilyINet && (t.Name == TableName || t.Name == HardwareTableName || t.Name == probeTable.Name) || isFormer(t)
}

func isFormer(t *nftables.Table) bool {
	return t.Family == nftables.TableFamilyINet && slices.Contains(formerTables, t.Name)
}

var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
}

func familyName(f nftables.TableFamily) string { return familyNames[f] }

// owners are parts of table names of programs that use flowtables.
var owners = map[string]string{"firewalld": "firewalld", "calico": "Calico", "cali-": "Calico", "antrea": "Antrea", "fw4": "OpenWrt"}

func owner(table string) string {
	for _, part := range slices.Sorted(maps.Keys(owners)) {
		if strings.Contains(table, part) {
			return ", of " + owners[part]
		}
	}
	return ""
}
