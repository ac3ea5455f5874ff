// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tables of iptables-legacy are read by getsockopt (linux/netfilter_ipv4/ip_tables.h,
// linux/netfilter_ipv6/ip6_tables.h).

// A legacyFamily is what differs between iptables and ip6tables.
type legacyFamily struct {
	family, domain, level int
	names, program        string
	address               int // size of an address in bytes
	header                int // size of what an entry matches (struct ipt_ip, ip6t_ip6)
	gotoFlag              uint8
}

var legacyFamilies = []*legacyFamily{
	{familyIPv4, unix.AF_INET, unix.SOL_IP, "/proc/thread-self/net/ip_tables_names", "iptables-legacy", 4, 84, 2},
	{familyIPv6, unix.AF_INET6, unix.SOL_IPV6, "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy", 16, 136, 4},
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

// A legacyTable is a table of a family as the kernel returned it: its information, then its entries.
type legacyTable struct {
	*legacyFamily
	name    string
	info    []byte
	entries []byte
	chains  map[string][]rule
	drops   map[string]bool // the policies
}

// readLegacyTables returns the tables that this network namespace has.
func readLegacyTables() (all []*legacyTable, err error) {
	for _, f := range legacyFamilies {
		text, err := os.ReadFile(f.names)
		if errors.Is(err, os.ErrNotExist) {
			continue // the module is not loaded
		}
		if err != nil {
			return nil, fmt.Errorf("list the tables of %s: %w", f.program, err)
		}
		for _, name := range strings.Fields(string(text)) {
			t, err := f.read(name)
			if err != nil {
				return nil, fmt.Errorf("read table %s of %s: %w", name, f.program, err)
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// read reads a table. The kernel answers EAGAIN if its size changes meanwhile.
func (f *legacyFamily) read(name string) (*legacyTable, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range legacyAttempts {
		info := make([]byte, infoSize)
		copy(info, name)
		if err := getsockopt(fd, f.level, getInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[infoSize-4:])
		entries := make([]byte, entriesHeader+int(size))
		copy(entries, name)
		binary.NativeEndian.PutUint32(entries[tableNameSize:], size)
		if err = getsockopt(fd, f.level, getEntries, entries); err == nil {
			return &legacyTable{legacyFamily: f, name: name, info: info, entries: entries[entriesHeader:]}, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return nil, err
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

func (t *legacyTable) title(part, chain string) string {
	return fmt.Sprintf("%s %s in chain %s of table %s", t.program, part, chain, t.name)
}

// bases returns the base chains that packets between pods may meet.
func (t *legacyTable) bases() ([]base, error) {
	if err := t.parse(); err != nil {
		return nil, fmt.Errorf("table %s of %s: %w", t.name, t.program, err)
	}
	var all []base
	for _, at := range []struct {
		number int
		hook   hook
	}{{0, prerouting}, {2, forward}, {4, postrouting}} {
		if t.hasHook(at.number) {
			name := legacyHooks[at.number]
			all = append(all, base{
				table: t, family: uint8(t.family), chain: name, hook: at.hook, priority: legacyPriority[t.name], drop: t.drops[name], nat: t.name == "nat",
			})
		}
	}
	return all, nil
}

// legacyHooks are the names of the chains that begin at the entries of ipt_getinfo.hook_entry.
var legacyHooks = [legacyHookCount]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

var legacyPriority = map[string]int32{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

// rules implements table.
func (t *legacyTable) rules(chain string) ([]rule, error) { return t.chains[chain], nil }

// key is the table without the counters of its entries.
func (t *legacyTable) key() []byte {
	key := slices.Concat([]byte(t.program+" "+t.name+" "), t.info, t.entries)
	start := len(key) - len(t.entries)
	_ = t.each(func(e legacyEntry) error {
		clear(key[start+e.offset+t.counters():][:16])
		return nil
	})
	return key
}

// A legacyEntry is a rule: what it matches, extensions of matches, and a target.
type legacyEntry struct {
	offset  int
	header  []byte // struct ipt_ip or ip6t_ip6
	matches []legacyExtension
	target  legacyExtension
}

type legacyExtension struct {
	name     string
	revision uint32
	info     []byte
}

// Entries continue after their header with nfcache, the offsets of target and next entry, comefrom and, aligned to 8
// bytes, two counters.
func (f *legacyFamily) counters() int    { return (f.header + 12 + 7) &^ 7 }
func (f *legacyFamily) entryHeader() int { return f.counters() + 16 }

var errLegacyLayout = errors.New("unexpected layout")

// each visits the entries.
func (t *legacyTable) each(visit func(legacyEntry) error) error {
	for at := 0; at < len(t.entries); {
		rest := t.entries[at:]
		if len(rest) < t.entryHeader() {
			return errLegacyLayout
		}
		target, next := int(binary.NativeEndian.Uint16(rest[t.header+4:])), int(binary.NativeEndian.Uint16(rest[t.header+6:]))
		if target < t.entryHeader() || next < target+extensionHeader || next > len(rest) {
			return errLegacyLayout
		}
		e := legacyEntry{offset: at, header: rest[:t.header]}
		for m := rest[t.entryHeader():target]; len(m) > 0; {
			x, size, err := extension(m)
			if err != nil {
				return err
			}
			e.matches, m = append(e.matches, x), m[size:]
		}
		var err error
		if e.target, _, err = extension(rest[target:next]); err != nil {
			return err
		}
		if err := visit(e); err != nil {
			return err
		}
		at += next
	}
	return nil
}

// extensionHeader is the size of struct xt_entry_match and xt_entry_target without their data.
const extensionHeader = 32

// extension reads the first one of b, and its size.
func extension(b []byte) (x legacyExtension, size int, err error) {
	if len(b) < extensionHeader {
		return x, 0, errLegacyLayout
	}
	if size = int(binary.NativeEndian.Uint16(b)); size < extensionHeader || size > len(b) {
		return x, 0, errLegacyLayout
	}
	name, _, _ := bytes.Cut(b[2:extensionHeader-1], []byte{0})
	return legacyExtension{string(name), uint32(b[extensionHeader-1]), b[extensionHeader:size]}, size, nil
}
