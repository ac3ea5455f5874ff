/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The path MTU towards those to whom this node sends encapsulated packets (DSR). A router need
 * quote no more of a packet than its IP header and 8 octets (RFC 792), which do not have the
 * client's packet. So what it says is remembered for the outer destination (RFC 2003 section 5.1,
 * "tunnel soft state"; RFC 2473 section 7.1), and the next packet that is too big is answered. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "encapsulate.h"
#include "packet.h"
#include "tables.h"
#include "workspace.h"

/* How long it is believed (RFC 1191 section 6.3, RFC 8201 section 4). */
#define OUTER_MTU_SECONDS 600

/* The least that is believed for what is inside. Anybody who knows the addresses can make up such
 * an error. Of IPv4: as Linux has it by default (net.ipv4.route.min_pmtu). */
#define OUTER_LEAST_IPV4  552
#define OUTER_LEAST_IPV6  1280

struct outer_path {
	__u32 mtu;   /* 0: no router has told of one */
	__u32 since; /* seconds, CLOCK_MONOTONIC */
};

/* By outer destination. Those are here that packets have been sent to: only their MTU may change.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct outer_path);
} outer_paths SEC(".maps");

/* The path MTU towards w->outer.destination; 0: no less than the route's. It notes that packets are
 * sent there. Asked only when a route is looked up: the next-hop cache keeps the result. */
static __always_inline __u32 outer_mtu(struct workspace *w)
{
	struct address to = w->outer.destination;
	struct outer_path *path = bpf_map_lookup_elem(&outer_paths, &to), none = {};

	if (!path && !dry_run)
		bpf_map_update_elem(&outer_paths, &to, &none, BPF_NOEXIST);
	if (!path || !path->mtu || second_of(w) - path->since >= OUTER_MTU_SECONDS)
		return 0;
	return path->mtu;
}

/* Whether an outer header, which an error quotes, is one that this node makes, with nothing legible
 * inside: the quote ends before the client's ports. Returns the length of what is put around a
 * packet then, else 0. */
static __always_inline __u32 outer_alone(const struct packet *p, const struct packet *quoted)
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

/* Remembers what a router says of the way to an outer destination. Returns whether it is believed:
 * packets are sent there, and the one that is quoted was longer. */
static __always_inline int outer_learn(struct workspace *w, const struct address *destination,
				       __u32 length, __u32 overhead, __u32 mtu)
{
	__u32 least = overhead + (w->packet.is_v6 ? OUTER_LEAST_IPV6 : OUTER_LEAST_IPV4);
	struct address to = *destination;
	struct outer_path *path = bpf_map_lookup_elem(&outer_paths, &to);
	__u32 now = second_of(w);

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
