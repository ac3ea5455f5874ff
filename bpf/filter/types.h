/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layout of the prefilter (filter/prefilter_bits.h). The agent fills it. */
#pragma once

#include <linux/types.h>

/* Sizes of the prefilter. */
enum prefilter_size {
	PREFILTER_WORDS = 8192,	   /* of 64 bits, in each of the two sets */
	PREFILTER_WORD_SHIFT = 51, /* high bits of a hash: the word; the bits below: the bit */
	PREFILTER_BIT_SHIFT = 45,
	PREFILTER_NETWORKS = 2, /* per family */
	PREFILTER_PODS = 4,	/* per family */
};

/* The halves of the multipliers of the hashes. */
enum prefilter_multiplier {
	PREFILTER_FIRST_HIGH = 0x9e3779b9,
	PREFILTER_FIRST_LOW = 0x7f4a7c15,
	PREFILTER_LAST_HIGH = 0xd6e8feb8,
	PREFILTER_LAST_LOW = 0x6659fd93,
};

/* The network of all addresses with (address & mask) == value. */
struct prefilter_network4 {
	__be32 mask;
	__be32 value;
};

struct prefilter_network6 {
	__u64 mask[2]; /* in network byte order */
	__u64 value[2];
};

enum prefilter_state {
	PREFILTER_OFF,	 /* the sets are not filled: everything is looked up */
	PREFILTER_FIRST, /* the first set is active */
	PREFILTER_SECOND,
};

struct prefilter {
	__u32 state;	     /* enum prefilter_state */
	__u32 pods_complete; /* 1: `pods4` and `pods6` have all pod networks */
	/* ServiceCIDRs. If there are more than fit, an entry covers several. */
	struct prefilter_network4 services4[PREFILTER_NETWORKS];
	/* The pod networks, or the largest of them; `networks` has all. */
	struct prefilter_network4 pods4[PREFILTER_PODS];
	__u64 unused;
	struct prefilter_network6 services6[PREFILTER_NETWORKS];
	struct prefilter_network6 pods6[PREFILTER_PODS];
	__u64 bits[2 * PREFILTER_WORDS];
};

#define XFRM_PAIRS 128

/* The packets that an XFRM policy matches; replies have both ends exchanged. Addresses and ports
 * are those of the selector, and zero outside of the masks. */
struct xfrm_pair {
	struct address source;
	struct address source_mask;
	struct address destination;
	struct address destination_mask;
	__be16 source_port;
	__be16 source_port_mask;
	__be16 destination_port;
	__be16 destination_port_mask;
	__u32 protocol; /* 0: any */
	__u32 only_v6;	/* IPv4, which is mapped into IPv6, does not match */
};

/* The packets that may not be sent or accepted as they are. */
struct xfrm_pairs {
	__u32 count;
	__u32 reserved;
	struct xfrm_pair pairs[XFRM_PAIRS];
};
