/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The two ends of packets. */
#pragma once

#include <linux/types.h>

#include "address.h"
#include "edge_types.h"

static __always_inline void tuple_reverse(const struct tuple *t, struct tuple *reverse)
{
	reverse->source = t->destination;
	reverse->destination = t->source;
	reverse->source_port = t->destination_port;
	reverse->destination_port = t->source_port;
	/* In one word with what is reserved: else the compiler writes zeros byte by byte, with all
	 * that follows in the same structure. */
	*(__u32 *)&reverse->protocol = bpf_htonl((__u32)t->protocol << 24);
}

static __always_inline int tuple_equal(const struct tuple *a, const struct tuple *b)
{
	return address_equal(&a->source, &b->source) &&
	       address_equal(&a->destination, &b->destination) &&
	       a->source_port == b->source_port && a->destination_port == b->destination_port &&
	       a->protocol == b->protocol;
}

static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1;
	return hash ^ hash >> 15;
}

/* The same on every node, and after a restart: the choices of a flow follow from
 * it. What it begins with is the same for all of IPv4, and not worked out for each packet. */
static __always_inline __u32 tuple_hash(const struct tuple *t)
{
	const __u32 *words = (const __u32 *)t;
	__u32 hash = 0x811c9dc5;

	if (address_is_v4(&t->source)) {
		hash = mix(mix(mix(hash, 0), 0), bpf_htonl(0xffff));
	} else {
		for (int i = 0; i < 3; i++)
			hash = mix(hash, words[i]);
	}
	for (int i = 3; i < (int)(sizeof(*t) / sizeof(*words)); i++)
		hash = mix(hash, words[i]);
	return mix(hash, hash >> 16);
}
