/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the packets of flows on the stack, to find those that are worth an entry. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "offload/maps.h"
#include "offload/types.h"
#include "state/scratch.h"

/* A flow that sends nothing for this long, in ticks, is counted anew: half a second. */
#define OFFLOAD_COUNT_EXPIRY 480

/* A flow that was proposed is proposed again after as many packets as it had, at most this many. */
#define OFFLOAD_NEXT_MOST    4096

/* Counts a packet of another flow than the one that has the place. The one with most packets keeps
 * it, and of equal ones one wins. A flow that stays on the stack for good loses its lead soon. */
static __always_inline void offload_count_other(struct offload_count *c, __u32 threshold)
{
	if (bpf_get_prandom_u32() & 1)
		return;
	c->count -= c->count > 2 * threshold ? c->count >> 3 : 1;
}

/* Counts a packet that goes to the stack, of a key with a sum (offload_sum). Returns whether egress
 * is to look at its flow. The secret in the sum keeps clients from choosing keys of one place. */
static __always_inline int offload_is_due(struct scratch *w, __u64 sum, __u32 threshold)
{
	__u32 hash = sum, slot = (sum >> 32) % OFFLOAD_COUNTS, now = w->clock.tick;
	struct offload_count *c = bpf_map_lookup_elem(&offload_counts, &slot);

	if (!c)
		return 0;
	if (c->hash != hash && c->count && now - c->tick < OFFLOAD_COUNT_EXPIRY) {
		offload_count_other(c, threshold);
		return 0;
	}
	if (c->hash != hash || now - c->tick >= OFFLOAD_COUNT_EXPIRY) {
		c->hash = hash;
		c->count = 0;
		c->next = threshold;
	}
	c->tick = now;
	if (c->count++ < c->next)
		return 0;
	c->next = c->count + (c->count < OFFLOAD_NEXT_MOST ? c->count : OFFLOAD_NEXT_MOST);
	return 1;
}

/* Counts a flow from the beginning: it returns to the stack. */
static __always_inline void offload_count_again(__u64 sum)
{
	__u32 hash = sum, slot = (sum >> 32) % OFFLOAD_COUNTS;
	struct offload_count *c = bpf_map_lookup_elem(&offload_counts, &slot);

	if (c && c->hash == hash) {
		c->hash = 0;
		c->count = 0;
	}
}
