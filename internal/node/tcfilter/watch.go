// SPDX-License-Identifier: Apache-2.0

package tcfilter

import (
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// OwnPrefix begins the names of Beeline's own filters.
const OwnPrefix = "beeline_"

// Concerns reports whether a message of RTNLGRP_TC may be about anything but Beeline's own filters: who attaches these
// because of a signal would get the next one. A qdisc clsact, or a chain, does nothing with packets by itself.
func Concerns(m syscall.NetlinkMessage) bool {
	o, err := netdev.ObjectOf(m.Data, nl.SizeofTcMsg)
	if err != nil {
		return true
	}
	var kind string
	var options []byte
	for _, a := range o.Attributes {
		switch a.Attr.Type {
		case nl.TCA_KIND:
			kind = text(a.Value)
		case nl.TCA_OPTIONS:
			options = a.Value
		}
	}
	switch m.Header.Type {
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		return kind != "clsact"
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		return kind != "bpf" || !isOwn(options, m.Header.Type == unix.RTM_DELTFILTER)
	case unix.RTM_NEWCHAIN, unix.RTM_DELCHAIN:
		return false
	}
	return true
}

// isOwn reports whether options are of one of Beeline's filters. A message without options says that the last filter of
// a priority has been deleted, after another message about this filter.
func isOwn(options []byte, deleted bool) bool {
	attributes, err := nl.ParseRouteAttr(options)
	if err != nil {
		return false
	}
	for _, a := range attributes {
		if a.Attr.Type == nl.TCA_BPF_NAME {
			return strings.HasPrefix(text(a.Value), OwnPrefix)
		}
	}
	return deleted && len(attributes) == 0
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }
