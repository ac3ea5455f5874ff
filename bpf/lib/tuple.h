/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The two ends of packets. */
#pragma once

#include <linux/types.h>

#include "address.h"
#include "edge_types.h"

/* Both ports as they are in TCP's and UDP's headers. */
static __always_inline __u32 *tuple_ports(struct tuple *t)
{
	return (__u32 *)&t->source_port;
}

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

/* The same of tuples in tables and the workspace, in one comparison: the verifier need not
 * follow each. */
static __always_inline int tuple_same(const struct tuple *a, const struct tuple *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]) | (x[4] ^ y[4]));
}

static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1;
	return hash ^ hash >> 15;
}

/* The same on every node, and after a restart: the choices of a flow follow from it. The words
 * are multiplied side by side, and not one after the other, since all that is looked up for a
 * packet waits for this. Every bit of them then comes to the upper half of the last product. */
static __always_inline __u32 tuple_hash(const struct tuple *t)
{
	const __u64 *words = (const __u64 *)t;
	/* By themselves, as they have been written. */
	__u64 last = *(const __u32 *)&t->source_port | (__u64)t->protocol << 32;
	__u64 hash = words[0] * 0x9e3779b97f4a7c15 ^ words[1] * 0xd6e8feb86659fd93 ^
		     words[2] * 0xc2b2ae3d27d4eb4f ^ words[3] * 0xff51afd7ed558ccd ^
		     last * 0xa0761d6478bd642f;

	hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15;
	return (hash ^ hash >> 29) * 0xd6e8feb86659fd93 >> 32;
}
