/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* XFRM policies: packets that the kernel would encrypt, block, or accept only if they came
 * encrypted. What the edge forwards does not meet them, so the program asks: for the first packet
 * of a flow, because the agent deletes the entries that a new policy concerns, and for each packet
 * without an entry, and each outer header, which no entry has. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "filter/types.h"
#include "lb/address.h"
#include "packet/types.h"

/* Entry 0. A hash table replaces the value as a whole; an array would be seen half written. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xfrm_pairs);
} xfrm_policies SEC(".maps");

/* 1 while `xfrm_policies` has none: a packet then pays one load. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xfrm_none SEC(".maps");

/* Returns whether an address differs from another one below a mask. Word by word, to spare stack.
 */
static __always_inline int address_differs(const struct address *a, const struct address *value,
					   const struct address *mask)
{
	const __u32 *x = address_words_const(a), *y = address_words_const(value),
		    *m = address_words_const(mask);

	return (x[0] ^ y[0]) & m[0] || (x[1] ^ y[1]) & m[1] || (x[2] ^ y[2]) & m[2] ||
	       (x[3] ^ y[3]) & m[3];
}

/* Returns whether packets with a tuple match, or (`reply`) packets in the other direction. */
static __always_inline int xfrm_pair_matches(const struct xfrm_pair *pair, const struct tuple *t,
					     int reply)
{
	const struct address *from = reply ? &t->destination : &t->source;
	const struct address *to = reply ? &t->source : &t->destination;
	__be16 from_port = reply ? t->destination_port : t->source_port;
	__be16 to_port = reply ? t->source_port : t->destination_port;

	return !address_differs(from, &pair->source, &pair->source_mask) &&
	       !address_differs(to, &pair->destination, &pair->destination_mask) &&
	       !((from_port ^ pair->source_port) & pair->source_port_mask) &&
	       !((to_port ^ pair->destination_port) & pair->destination_port_mask) &&
	       (!pair->protocol || pair->protocol == t->protocol) &&
	       !(pair->only_v6 && address_is_v4(from));
}

struct xfrm_search {
	const struct tuple *t;
	const struct xfrm_pairs *row;
	int matches;
};

static long xfrm_search_step(__u32 i, struct xfrm_search *s)
{
	const struct xfrm_pair *pair;

	if (i >= XFRM_PAIRS)
		return 1;
	pair = &s->row->pairs[i];
	s->matches = xfrm_pair_matches(pair, s->t, 0) || xfrm_pair_matches(pair, s->t, 1);
	return s->matches;
}

/* Global function: the verifier checks it once. */
__noinline int xfrm_matches(const struct tuple *t)
{
	__u32 zero = 0;
	struct xfrm_search s = {.t = t};

	if (!t)
		return 0;
	s.row = bpf_map_lookup_elem(&xfrm_policies, &zero);
	if (!s.row)
		return 0;
	bpf_loop(s.row->count < XFRM_PAIRS ? s.row->count : XFRM_PAIRS, xfrm_search_step, &s, 0);
	return s.matches;
}

/* Returns whether a policy concerns packets with a tuple, or their replies. */
static __always_inline int xfrm_concerns(const struct tuple *t)
{
	__u32 zero = 0;
	const __u32 *none = bpf_map_lookup_elem(&xfrm_none, &zero);

	return none && !*none && xfrm_matches(t);
}
