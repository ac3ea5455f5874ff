/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layouts of the sets (set_table/set_table.h), shared by the programs and the agent. */
#pragma once

#include <linux/types.h>

enum set_table_size {
	SET_PLACES = 15,
	SET_SECRET_WORDS = 10, /* of the longest key */
};

/* Bit in a tag: the entry in its place is being written. */
#define SET_CLAIMED 0x80000000

/* The order of eviction from a full set: the highest rank first. A new entry never evicts one with
 * a lower rank than its own. */
enum set_rank {
	SET_RANK_TCP,	  /* TCP, handshake complete */
	SET_RANK_ASSURED, /* another flow that has continued in both directions; a returning client
			   */
	SET_RANK_CLOSING, /* TCP that one side has closed: before all above, whosever it is */
	SET_RANK_UNASSURED, /* a flow that has not; a client seen once */
	SET_RANK_CLOSED,
	SET_RANK_BITS = 3,
};

/* The eviction data of an entry. */
struct set_eviction {
	__u32 expires; /* tick at which the entry expires */
	__u32 owner;   /* ID in `services`; in the low SET_RANK_BITS bits enum set_rank */
};

/* One cache line. The tag of each place: 0 if the place is free, else the low 31 bits of the key's
 * hash (set_tag). */
struct set_tags {
	__u32 tags[SET_PLACES];
	__u32 spilled; /* not 0: entries that belong here may be in their other set */
};

/* Two cache lines. */
struct set_evictions {
	struct set_eviction evictions[SET_PLACES];
	__u64 reserved;
};

/* The secret multipliers of the words of a key (set_sum). */
struct set_secret {
	__u64 multipliers[SET_SECRET_WORDS];
};

/* The halves of the multiplier of their sum. */
enum set_mix {
	SET_MIX_HIGH = 0x9e3779b9,
	SET_MIX_LOW = 0x7f4a7c15,
};
