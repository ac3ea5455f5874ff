/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The heads of sets (set_table.h), which programs and agent both know. */
#pragma once

#include <linux/types.h>

enum set_table_size {
	SET_PLACES = 15,
	SET_SECRET_WORDS = 10, /* of the longest key */
};

/* A tag: the entry in its place is being written. */
#define SET_CLAIMED 0x80000000

/* Which entry gives way first when a set is full: that of the highest rank. A new entry displaces
 * none of a lower rank than its own. */
enum set_rank {
	SET_RANK_TCP,	    /* TCP's handshake is complete */
	SET_RANK_ASSURED,   /* another flow that has gone on in both directions; a client seen again
			     */
	SET_RANK_UNASSURED, /* one that has not; a client seen once */
	SET_RANK_CLOSED,
	SET_RANK_BITS = 3,
};

/* What decides which entry of a set gives way. */
struct set_mark {
	__u32 until; /* tick at which the entry expires */
	__u32 owner; /* id in `services`, and below it enum set_rank in SET_RANK_BITS bits */
};

/* The tags are one cache line, the marks two. Of each place the tag: 0 if it is free, else the
 * hash of the key without its highest bit (set_tag). */
struct set_head {
	__u32 tags[SET_PLACES];
	__u32 spilled; /* not 0: entries that belong here are in their other set */
	struct set_mark marks[SET_PLACES];
	__u64 reserved;
};

/* What the words of a key are multiplied by to find its set. */
struct set_secret {
	__u64 multipliers[SET_SECRET_WORDS];
};

/* The halves of what their sum is multiplied by. */
enum set_mix {
	SET_MIX_HIGH = 0x9e3779b9,
	SET_MIX_LOW = 0x7f4a7c15,
};
