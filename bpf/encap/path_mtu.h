/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The path MTU to the nodes and backends to which this node sends encapsulated packets (DSR). A
 * router may quote just the IP header and 8 octets of a packet (RFC 792), which do not include the
 * client's packet. So the MTU that it reports is stored per outer destination (RFC 2003 section
 * 5.1, "tunnel soft state"; RFC 2473 section 7.1), and the client gets an error for the next packet
 * that is too big. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "encap/encap.h"
#include "encap/wire.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "state/scratch.h"

/* Lifetime of a reported MTU (RFC 1191 section 6.3, RFC 8201 section 4). */
#define OUTER_MTU_SECONDS 600

/* The smallest accepted MTU, because anyone who knows the addresses can forge such an error. IPv4:
 * the default of Linux (net.ipv4.route.min_pmtu). */
#define OUTER_LEAST_IPV4  552
#define OUTER_LEAST_IPV6  1280

struct outer_path {
	__u32 mtu;   /* 0: no router has reported one */
	__u32 since; /* seconds, CLOCK_MONOTONIC */
};

/* By outer destination. Entries are created when packets are sent there; errors only update the
 * MTU. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct outer_path);
} outer_paths SEC(".maps");

/* Returns the path MTU to w->encap.outer.destination, or 0 if it is the route's. Creates the entry.
 * Called only with a route lookup: the next-hop cache keeps the result. */
static __always_inline __u32 outer_mtu(struct scratch *w)
{
	struct address to = w->encap.outer.destination;
	struct outer_path *path = bpf_map_lookup_elem(&outer_paths, &to), none = {};

	if (!path && !dry_run)
		bpf_map_update_elem(&outer_paths, &to, &none, BPF_NOEXIST);
	if (!path || !path->mtu || w->clock.second - path->since >= OUTER_MTU_SECONDS)
		return 0;
	return path->mtu;
}

/* Returns the overhead of the encapsulation if a quoted outer header is one that this node sends,
 * and the quote ends before the client's ports; else 0. */
static __always_inline __u32 quoted_outer_only(const struct packet *p, const struct packet *quoted)
{
	__u32 header = p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr), overhead;
	__u32 end = p->l3 + p->length;

	if (quoted->l4 - quoted->l3 != header)
		return 0;
	if (quoted->tuple.protocol == (p->is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP))
		overhead = dsr_overhead(DSR_IPIP, p->is_v6);
	else if (quoted->tuple.protocol == IPPROTO_UDP &&
		 quoted->tuple.destination_port == bpf_htons(GENEVE_PORT))
		overhead = dsr_overhead(DSR_GENEVE, p->is_v6);
	else
		return 0;
	return end < quoted->l3 + overhead + header + 8 ? overhead : 0;
}

/* Stores the MTU that a router has reported for an outer destination. Returns whether it was
 * accepted: packets are sent there, and the quoted packet was longer than the MTU. */
static __always_inline int outer_mtu_learn(struct scratch *w, const struct address *destination,
					   __u32 length, __u32 overhead, __u32 mtu)
{
	__u32 least = overhead + (w->packet.is_v6 ? OUTER_LEAST_IPV6 : OUTER_LEAST_IPV4);
	struct address to = *destination;
	struct outer_path *path = bpf_map_lookup_elem(&outer_paths, &to);
	__u32 now = w->clock.second;

	if (!path || !mtu || length <= mtu)
		return 0;
	if (mtu < least)
		mtu = least;
	if (dry_run || (path->mtu && path->mtu < mtu && now - path->since < OUTER_MTU_SECONDS))
		return 1;
	path->since = now;
	path->mtu = mtu;
	return 1;
}
