/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Operations on tuples. */
#pragma once

#include <linux/types.h>

#include "lb/address.h"
#include "packet/types.h"

/* Returns both ports as one word, as in the headers of TCP and UDP. */
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
	/* In one word with the reserved bytes: otherwise the compiler stores zeros bytewise,
	 * including following ones of the same structure. */
	*(__u32 *)&reverse->protocol = bpf_htonl((__u32)t->protocol << 24);
}

static __always_inline int tuple_equal(const struct tuple *a, const struct tuple *b)
{
	return address_equal(&a->source, &b->source) &&
	       address_equal(&a->destination, &b->destination) &&
	       a->source_port == b->source_port && a->destination_port == b->destination_port &&
	       a->protocol == b->protocol;
}

/* tuple_equal for tuples in maps and the scratch area, in one comparison, to spare the verifier a
 * path per word. */
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

/* Returns the hash of a tuple. It is the same on every node and after a restart, because backends
 * and ports are chosen by it. The words are multiplied independently, not in a chain, because every
 * lookup for a packet waits for the result. Each bit of the words affects the upper half of the
 * last product. */
static __always_inline __u32 tuple_hash(const struct tuple *t)
{
	const __u64 *words = (const __u64 *)t;
	/* Separate loads, as they were stored: see address_put_v4. */
	__u64 last = *(const __u32 *)&t->source_port | (__u64)t->protocol << 32;
	__u64 hash = words[0] * 0x9e3779b97f4a7c15 ^ words[1] * 0xd6e8feb86659fd93 ^
		     words[2] * 0xc2b2ae3d27d4eb4f ^ words[3] * 0xff51afd7ed558ccd ^
		     last * 0xa0761d6478bd642f;

	hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15;
	return (hash ^ hash >> 29) * 0xd6e8feb86659fd93 >> 32;
}
