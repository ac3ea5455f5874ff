/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The members of a frontend's sets, and the search for a backend among them. Members are sorted by
 * address and port (package reconcile), so this is a binary search. No packet can make a program
 * scan a whole set. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"

/* An address and port as numbers that compare in the order of the members. */
struct member_rank {
	__u64 high, low; /* of the address */
	__u32 port;
};

struct member_search {
	struct member_rank rank;
	struct slot_range range; /* that may hold it */
};

/* Enough for 2^32 members: each step halves the range. */
#define MEMBER_SEARCH_STEPS 33

static __always_inline __u32 slot_backend(__u32 slot)
{
	__u32 *id = bpf_map_lookup_elem(&slots, &slot);

	return id ? *id : 0;
}

/* Returns the lists of a frontend, or 0 if it has none. */
static __always_inline const struct frontend_lists *lists_of(const struct frontend *frontend)
{
	__u32 row = frontend->lists;

	return row ? bpf_map_lookup_elem(&frontend_list_rows, &row) : 0;
}

/* Returns the decision for a class of clients. Constant offsets: on some kernels a checked bound
 * does not reach the access. */
static __always_inline const struct decision *decision_for(const struct frontend *frontend,
							   enum source_class class)
{
	if (class == FROM_POD)
		return &frontend->decisions[FROM_POD];
	if (class == FROM_NODE)
		return &frontend->decisions[FROM_NODE];
	return &frontend->decisions[FROM_OUTSIDE];
}

static __always_inline const struct slot_range *listed_members(const struct frontend_lists *lists,
							       enum source_class class)
{
	if (class == FROM_POD)
		return &lists->members[FROM_POD];
	if (class == FROM_NODE)
		return &lists->members[FROM_NODE];
	return &lists->members[FROM_OUTSIDE];
}

/* Finds the members of the set for a class of clients. Without a set the range is empty. */
static __always_inline void members_of(const struct frontend *frontend,
				       const struct frontend_lists *lists, enum source_class class,
				       struct slot_range *members)
{
	const struct decision *decision = decision_for(frontend, class);

	if (lists) {
		*members = *listed_members(lists, class);
		return;
	}
	members->first = decision->first;
	members->count = decision->count;
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
	__u32 half = search->range.count / 2, id = slot_backend(search->range.first + half);
	struct backend *backend = bpf_map_lookup_elem(&backends, &id);
	struct member_rank rank;

	if (!search->range.count || !backend)
		return 1;
	member_rank_set(&rank, &backend->address, backend->port);
	if (member_rank_less(&rank, &search->rank)) {
		search->range.first += half + 1;
		search->range.count -= half + 1;
	} else {
		search->range.count = half;
	}
	return 0;
}

/* Returns the first slot of a range whose backend is not less than an address and port: the slot
 * that holds it, if there is one. Port 0 is less than all others of the address. If there is none,
 * returns a slot past the end of the range. Global function: the verifier checks it once. */
__noinline __u32 member_slot(const struct slot_range *members, const struct address *address,
			     __be16 port)
{
	struct member_search search = {};

	if (!members || !address)
		return 0;
	search.range = *members;
	member_rank_set(&search.rank, address, port);
	bpf_loop(MEMBER_SEARCH_STEPS, member_search_step, &search, 0);
	return search.range.first;
}
