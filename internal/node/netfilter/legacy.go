// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rules of iptables-legacy are read only for the edge (legacy_rules.go), which packets pass without them, and for
// exemptions from conntrack. Otherwise,
// that a chain has one, or a policy other than ACCEPT, is a filter. The kernel says so by getsockopt
// (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h). Chains of users are reached only by rules of
// the chains at hooks, so alone they do not count: the kubelet has such (KUBE-KUBELET-CANARY).

// A legacyFamily is what differs between iptables and ip6tables.
type legacyFamily struct {
	family         uint8
	domain, level  int
	names, program string
	header         int // size of an entry without matches and target
	// Offsets in an entry: of those of its target and of the next entry, and of the flags that invert matches.
	offsets, inversions int
}

// The header of an entry is what it matches (struct ipt_ip, ip6t_ip6), nfcache, the offsets of its target and of the
// next entry, comefrom, and, aligned to 8 bytes, two counters.
var legacyFamilies = []*legacyFamily{
	{familyIPv4, unix.AF_INET, unix.SOL_IP, "/proc/thread-self/net/ip_tables_names", "iptables-legacy", 96 + 16, 84 + 4, 83},
	{familyIPv6, unix.AF_INET6, unix.SOL_IPV6, "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy", 152 + 16, 136 + 4, 132},
}

// Options of getsockopt, the same for both families.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
)

const (
	tableNameSize   = 32                                    // XT_TABLE_MAXNAMELEN
	infoSize        = tableNameSize + 4 + 5*4 + 5*4 + 4 + 4 // struct ipt_getinfo
	entriesHeader   = tableNameSize + 8                     // struct ipt_get_entries, whose entries are aligned to 8 bytes
	legacyAttempts  = 5
	legacyHookCount = 5
)

// legacyHooks are the chains that forwarded packets meet, by their number in ipt_getinfo.
var legacyHooks = []struct {
	number int
	name   string
	hook   hook
}{{0, "PREROUTING", prerouting}, {2, "FORWARD", forward}, {4, "POSTROUTING", postrouting}}

var legacyPriority = map[string]int32{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

// A legacyChain is a table of one chain, whose rules have any effect.
type legacyChain struct {
	*legacyFamily
	table string
	any   bool // it has rules
	// Only for the edge: the entries of the table, with counters of 0, and where those of the chain begin and end.
	entries     []byte
	first, last int
}

// rules implements table.
func (c *legacyChain) rules(string) ([]rule, error) {
	if !c.any {
		return nil, nil
	}
	return []rule{{steps: []step{effect{what: "they are not searched, those of iptables-nft are", unknown: true}}}}, nil
}

// title implements table.
func (c *legacyChain) title(part, chain string) string {
	if part == "rule" {
		part = "rules"
	}
	return fmt.Sprintf("%s %s in chain %s of table %s", c.program, part, chain, c.table)
}

// readLegacy returns the chains of iptables-legacy in this network namespace that forwarded packets meet, and that
// have rules, or a policy other than ACCEPT; of the named tables, or of all. With rules it also returns their rules,
// except in tables of NAT, where kube-proxy has one for each endpoint.
func readLegacy(rules bool, tables ...string) (all []base, err error) {
	for _, f := range legacyFamilies {
		text, err := os.ReadFile(f.names)
		if errors.Is(err, os.ErrNotExist) {
			continue // the module is not loaded
		}
		if err != nil {
			return nil, fmt.Errorf("list the tables of %s: %w", f.program, err)
		}
		for _, name := range strings.Fields(string(text)) {
			if len(tables) > 0 && !slices.Contains(tables, name) {
				continue
			}
			chains, err := f.read(name, rules && name != "nat")
			if errors.Is(err, unix.ENOENT) {
				continue // the table is gone
			}
			if err != nil {
				return nil, fmt.Errorf("read table %s of %s: %w", name, f.program, err)
			}
			all = append(all, chains...)
		}
	}
	return all, nil
}

// read reads a table. The kernel answers EAGAIN if its size changes meanwhile.
func (f *legacyFamily) read(name string, rules bool) (chains []base, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range legacyAttempts {
		if chains, err = f.chains(fd, name, rules); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return chains, err
}

// chains reads the entries of a table only if chains without rules need their policies, or for rules.
func (f *legacyFamily) chains(fd int, name string, rules bool) (chains []base, err error) {
	info, entries := make([]byte, infoSize), []byte(nil)
	copy(info, name)
	if err := getsockopt(fd, f.level, getInfo, info); err != nil {
		return nil, err
	}
	at := func(place int) uint32 { return binary.NativeEndian.Uint32(info[tableNameSize+4*place:]) }
	for _, h := range legacyHooks {
		if at(0)&(1<<h.number) == 0 { // valid_hooks
			continue
		}
		first, policy := at(1+h.number), at(1+legacyHookCount+h.number) // hook_entry, underflow
		c := &legacyChain{legacyFamily: f, table: name, any: first != policy}
		b := base{table: c, family: f.family, chain: h.name, hook: h.hook, priority: legacyPriority[name], nat: name == "nat", legacy: true}
		if !c.any || rules {
			if entries == nil {
				if entries, err = f.entries(fd, name, at(2+2*legacyHookCount)); err != nil {
					return nil, err
				}
				f.clearCounters(entries)
			}
			if b.drop, err = f.drops(entries, policy); err != nil {
				return nil, err
			}
			if rules {
				c.entries, c.first, c.last = entries, int(first), int(policy)
			}
		}
		if c.any || b.drop {
			chains = append(chains, b)
		}
	}
	return chains, nil
}

// entries reads the entries of a table of a size in bytes.
func (f *legacyFamily) entries(fd int, name string, size uint32) ([]byte, error) {
	all := make([]byte, entriesHeader+int(size))
	copy(all, name)
	binary.NativeEndian.PutUint32(all[tableNameSize:], size)
	if err := getsockopt(fd, f.level, getEntries, all); err != nil {
		return nil, err
	}
	return all[entriesHeader:], nil
}

// drops reports whether the policy at an offset is not ACCEPT.
func (f *legacyFamily) drops(entries []byte, at uint32) (bool, error) {
	e, err := f.entry(entries, int(at))
	if err != nil || len(e.data) < 4 {
		return false, errLegacyLayout
	}
	return int32(binary.NativeEndian.Uint32(e.data)) != legacyAccept, nil
}

func getsockopt(fd, level, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
