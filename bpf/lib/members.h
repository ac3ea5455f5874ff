/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Looks a backend up among the members of a set. Members are in the order of their addresses
 * and ports (package sync), so this is a binary search: its cost grows with the number of
 * digits of the set's size. No packet can make a program walk through a whole set. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "tables.h"

/* An address and a port as numbers, which compare in the order of the members. */
struct member_rank {
	__u64 high, low; /* of the address */
	__u32 port;
};

struct member_search {
	struct member_rank rank;
	__u32 first, count; /* the slots that may hold it */
};

/* Enough for 2^32 members: each step halves them. */
#define MEMBER_SEARCH_STEPS 33

static __always_inline __u32 slot_backend(__u32 slot)
{
	__u32 *id = bpf_map_lookup_elem(&slots, &slot);

	return id ? *id : 0;
}

static __always_inline void member_rank_set(struct member_rank *rank, const struct address *a,
					    __be16 port)
{
	const __u32 *w = address_words_const(a);

	rank->high = (__u64)bpf_ntohl(w[0]) << 32 | bpf_ntohl(w[1]);
	rank->low = (__u64)bpf_ntohl(w[2]) << 32 | bpf_ntohl(w[3]);
	rank->port = bpf_ntohs(port);
}

static __always_inline int member_rank_less(const struct member_rank *a,
					    const struct member_rank *b)
{
	if (a->high != b->high)
		return a->high < b->high;
	if (a->low != b->low)
		return a->low < b->low;
	return a->port < b->port;
}

static long member_search_step(__u32 i, struct member_search *search)
{
	__u32 half = search->count / 2, id = slot_backend(search->first + half);
	struct backend *backend = bpf_map_lookup_elem(&backends, &id);
	struct member_rank rank;

	if (!search->count || !backend)
		return 1;
	member_rank_set(&rank, &backend->address, backend->port);
	if (member_rank_less(&rank, &search->rank)) {
		search->first += half + 1;
		search->count -= half + 1;
	} else {
		search->count = half;
	}
	return 0;
}

/* The first slot of a set whose backend does not come before an address and port: the one
 * that holds it, if there is one. Port 0 comes before all others of the address. A slot behind
 * the set's end says that there is none. Not static: the verifier looks at it once. */
__noinline __u32 member_slot(const struct decision *members, const struct address *address,
			     __be16 port)
{
	struct member_search search = {};

	if (!members || !address)
		return 0;
	search.first = members->first;
	search.count = members->count;
	member_rank_set(&search.rank, address, port);
	bpf_loop(MEMBER_SEARCH_STEPS, member_search_step, &search, 0);
	return search.first;
}
