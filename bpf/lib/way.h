/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The last ways that encapsulated packets took. All flows to a backend take the same one, and
 * to look it up costs as much as all else that is done for a packet. A way is believed for a
 * moment: what has changed in the routes, among neighbours or at devices holds after that. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "headers.h"
#include "packet.h"
#include "tables.h"
#include "tuple.h"
#include "workspace.h"

#define WAYS	   512
/* In jiffies: 25 to 250 ms, as the kernel is configured. */
#define WAY_EXPIRY 25

/* One cache line, and so not all of a struct bpf_fib_lookup: what is needed of it to send a
 * packet on. */
struct way {
	struct address destination;
	struct address source; /* of the outer header */
	__u64 since;	       /* in jiffies */
	__u32 device;	       /* that packets have come by */
	__u32 next_device;     /* that they leave by */
	__u16 mtu;
	__u8 protocol; /* of the outer header; 0: the entry is free */
	__u8 reserved;
	__u8 macs[2 * ETH_ALEN]; /* `smac` and `dmac` */
};

_Static_assert(sizeof(struct way) == 64 && offsetof(struct bpf_fib_lookup, dmac) ==
						   offsetof(struct bpf_fib_lookup, smac) + ETH_ALEN,
	       "as it is copied");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WAYS);
	__type(key, __u32);
	__type(value, struct way);
} ways SEC(".maps");

/* The place of a packet's way. Nobody else is there meanwhile: bottom halves are off. */
static __always_inline struct way *way_of(const struct workspace *w)
{
	const __u32 *words = address_words_const(&w->outer.destination);
	__u32 slot = mix(mix(words[3], words[2]), words[1]) % WAYS;

	return dry_run || w->dsr == DSR_OPT ? 0 : bpf_map_lookup_elem(&ways, &slot);
}

/* Whether a packet of so many bytes can take it. */
static __always_inline int way_holds(const struct way *way, const struct workspace *w, __u32 device,
				     __u32 length)
{
	return way->protocol == w->outer.protocol && way->device == device &&
	       address_equal(&way->destination, &w->outer.destination) && length - 1 < way->mtu &&
	       bpf_jiffies64() - way->since < WAY_EXPIRY;
}

static __always_inline void way_take(const struct way *way, struct workspace *w)
{
	w->fib.ifindex = way->next_device;
	__builtin_memcpy(w->fib.smac, way->macs, sizeof(way->macs));
	w->outer.source = way->source;
}

static __always_inline void way_keep(struct way *way, const struct workspace *w, __u32 device)
{
	way->destination = w->outer.destination;
	way->source = w->outer.source;
	way->device = device;
	way->protocol = w->outer.protocol;
	way->since = bpf_jiffies64();
	way->next_device = w->fib.ifindex;
	way->mtu = w->fib.mtu_result;
	__builtin_memcpy(way->macs, w->fib.smac, sizeof(way->macs));
}
