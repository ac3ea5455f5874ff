// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A NoTrackFinder finds destinations that rules exempt from conntrack, and so from kube-proxy's rules, before they are
// routed.
type NoTrackFinder struct{ finder Finder }

// NoTrack is what rules exempt from conntrack, among the addresses of a search.
type NoTrack struct {
	classes []class
	legacy  []legacyNoTrack
}

// Empty reports whether no rule exempts any of the addresses.
func (n *NoTrack) Empty() bool { return len(n.classes) == 0 && len(n.legacy) == 0 }

// Has reports whether a rule exempts packets to an address and port, of TCP or UDP. Rules of iptables-legacy are read
// for addresses and protocols only.
func (n *NoTrack) Has(to netip.AddrPort, protocol uint8) bool {
	return slices.ContainsFunc(n.classes, func(c class) bool { return c.leadsTo(to, protocol) }) ||
		slices.ContainsFunc(n.legacy, func(l legacyNoTrack) bool {
			return l.address == to.Addr() && (l.protocol == 0 || l.protocol == protocol)
		})
}

// leadsTo reports whether a class has packets to a destination.
func (c *class) leadsTo(to netip.AddrPort, protocol uint8) bool {
	numbers := protocolNumbers(c.v6) // those without ports are last
	i := slices.Index(numbers[:2], protocol)
	return i >= 0 && c.protocols&(1<<i) != 0 && c.v6 == to.Addr().Is6() && c.dst.has(to.Addr()) && c.dport.has(port(to.Port()))
}

// Find searches the rules of the caller's network namespace for those that exempt packets to some of the addresses,
// except rules for packets of one device.
func (f *NoTrackFinder) Find(addresses []netip.Addr) (found NoTrack, err error) {
	if len(addresses) == 0 {
		return found, nil
	}
	err = f.finder.retry(func() error {
		if err := f.finder.readNFTables(); err != nil {
			return err
		}
		found, err = findNoTrack(addresses, f.finder.nft.bases)
		return err
	})
	if err != nil {
		return found, err
	}
	found.legacy, err = readLegacyNoTrack(addresses)
	return found, err
}

func findNoTrack(addresses []netip.Addr, bases []base) (found NoTrack, _ error) {
	w := &walk{subject: &Subject{Devices: []Device{{}}}, edge: true, onlyLosses: true, left: mostRules}
	any := deviceSet{true}
	for _, v6 := range []bool{false, true} {
		var own []span
		for _, a := range addresses {
			if a.Is6() == v6 {
				own = append(own, span{a, a})
			}
		}
		to := class{
			v6: v6, in: any, out: any, src: everything(v6), dst: everything(v6), sport: allPorts, dport: allPorts, states: withoutEntry, protocols: withPorts,
		}
		w.noTrack = func(c *class) {
			named := *c
			if named.dst, _ = c.dst.split(merged(own)); len(named.dst) > 0 {
				found.classes = append(found.classes, named)
			}
		}
		for i := range bases {
			w.base = &bases[i]
			if len(own) > 0 && w.base.hook == prerouting && w.base.family != familyBridge && w.base.priority < priorityConntrack && w.base.sees(v6) {
				w.start(&to)
			}
		}
	}
	return found, w.err
}

// A legacyNoTrack is a rule of iptables-legacy.
type legacyNoTrack struct {
	address  netip.Addr
	protocol uint8 // 0: all
}

// readLegacyNoTrack reads the rules of table raw whose target is CT with --notrack, and that name one of the addresses.
func readLegacyNoTrack(addresses []netip.Addr) (all []legacyNoTrack, err error) {
	for _, f := range legacyFamilies {
		text, err := os.ReadFile(f.names)
		if errors.Is(err, os.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(text)), "raw") {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the tables of %s: %w", f.program, err)
		}
		entries, err := f.table("raw")
		if errors.Is(err, unix.ENOENT) {
			continue // the table is gone
		}
		if err != nil {
			return nil, fmt.Errorf("read table raw of %s: %w", f.program, err)
		}
		for _, r := range f.noTrack(entries) {
			if slices.Contains(addresses, r.address) {
				all = append(all, r)
			}
		}
	}
	return all, nil
}

// table returns the entries of a table.
func (f *legacyFamily) table(name string) (entries []byte, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range legacyAttempts {
		info := make([]byte, infoSize)
		copy(info, name)
		if err = getsockopt(fd, f.level, getInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[tableNameSize+4*(2+2*legacyHookCount):])
		if entries, err = f.entries(fd, name, size); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return entries, err
}

// noTrack returns the rules among entries that exempt one address from conntrack. An entry begins with what it matches
// (struct ipt_ip, ip6t_ip6): the addresses of source and destination, and their masks. Then come devices and their
// masks, the protocol, flags, and nfcache with the offsets of the target and of the next entry.
func (f *legacyFamily) noTrack(entries []byte) (all []legacyNoTrack) {
	const targetHeader = 32
	length := 4
	if f.family == familyIPv6 {
		length = 16
	}
	for len(entries) > f.offsets+4 {
		target := int(binary.NativeEndian.Uint16(entries[f.offsets:]))
		next := int(binary.NativeEndian.Uint16(entries[f.offsets+2:]))
		if next <= f.offsets || next > len(entries) || target+targetHeader+2 > next {
			return all
		}
		e := entries[:next]
		entries = entries[next:]
		name, _, _ := strings.Cut(string(e[target+2:target+targetHeader-1]), "\x00")
		if name != "NOTRACK" && (name != "CT" || !isNoTrack(e[target+targetHeader:])) {
			continue
		}
		whole := !slices.ContainsFunc(e[3*length:4*length], func(b byte) bool { return b != 0xff })
		if inverted := e[f.inversions]&legacyInvertedDestination != 0; !whole || inverted {
			continue
		}
		address, _ := netip.AddrFromSlice(e[length : 2*length])
		all = append(all, legacyNoTrack{address, uint8(binary.NativeEndian.Uint16(e[4*length+64:]))})
	}
	return all
}

// legacyInvertedDestination is IPT_INV_DSTIP, the same for IPv6.
const legacyInvertedDestination = 0x10
