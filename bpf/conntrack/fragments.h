/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of fragmented datagrams, from their first fragments (edge/fragment_ports.h) until all
 * fragments have left. The sender may then reuse the identification. */
#pragma once

#include <linux/bpf.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/types.h"
#include "lb/maps.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "state/scratch.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

static __always_inline void fragment_key_set(struct fragment_key *key, const struct packet *p)
{
	key->source = p->tuple.source;
	key->destination = p->tuple.destination;
	key->id = p->fragment_id;
	key->protocol = p->tuple.protocol;
}

/* Returns what a fragment adds to `missing`. */
static __always_inline __s32 fragment_adds(struct context *ctx, const struct packet *p)
{
	__u32 at = p->is_v6 ? p->l4 - sizeof(struct ipv6_fragment) +
				      offsetof(struct ipv6_fragment, offset)
			    : p->l3 + offsetof(struct iphdr, frag_off);
	__s32 length = p->l3 + p->length - p->l4;
	__be16 field;
	__u16 place;

	if (p->fragment == FRAGMENT_FIRST || packet_load(ctx, at, &field, sizeof(field)))
		return -length;
	place = bpf_ntohs(field);
	if (place & (p->is_v6 ? IPV6_MORE_FRAGMENTS : IP_MORE_FRAGMENTS))
		return -length;
	return p->is_v6 ? place & IPV6_FRAGMENT_OFFSET : (place & IP_FRAGMENT_OFFSET) * 8;
}

/* Notes that a fragment leaves, in whatever order, and deletes the entry after the last one. Not
 * called for a packet that another hook handles: that one needs the entry. If a fragment came twice
 * or is lost, or if extension headers follow the first one's fragment header, the sum is another,
 * and the entry expires. */
static __always_inline void fragment_leaves(struct context *ctx, const struct packet *p)
{
	struct fragment_key key = {};
	struct fragment *known;

	if (dry_run)
		return;
	fragment_key_set(&key, p);
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		return;
	if (!__sync_add_and_fetch(&known->missing, fragment_adds(ctx, p)))
		bpf_map_delete_elem(&fragments, &key);
}
