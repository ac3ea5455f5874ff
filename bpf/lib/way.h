/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The last ways that packets took. All flows between two addresses take the same one, and to
 * look it up costs as much as all else that is done for a packet. A way is believed for a
 * moment: what has changed in the routes, among neighbours or at devices holds after that.
 * Only ways that lead somewhere are kept, and to Ethernet: what has none, or goes into a tunnel
 * without MAC addresses, is looked up each time. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_tables.h"
#include "headers.h"
#include "packet.h"
#include "tables.h"
#include "tuple.h"
#include "workspace.h"

#define WAYS	   1024
/* In ticks (set_table.h): 50 ms, whatever a jiffy is. */
#define WAY_EXPIRY 48

/* What a way was asked for. */
enum way_kind {
	WAY_FREE,  /* the entry is */
	WAY_ON,	   /* by whatever device, for what has come by one, between two addresses */
	WAY_BACK,  /* by a device, between two addresses */
	WAY_OWN,   /* as WAY_ON, to an address; the source is what the node sends from there */
	WAY_OUTER, /* the same; the source is that of an outer header (DSR) */
};

/* One cache line, and so not all of a struct bpf_fib_lookup: what is needed of it to send a
 * packet on. */
struct way {
	struct address destination;
	struct address source;
	__u32 since; /* tick */
	__u32 unused;
	__u32 device;	   /* that packets have come by; WAY_BACK: are to leave by */
	__u32 next_device; /* that they leave by */
	__u16 mtu;
	__u8 protocol; /* that rules for routes may ask for */
	__u8 kind;
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

/* The place of a way. Nobody else is there meanwhile: bottom halves are off. */
static __always_inline struct way *way_of(const struct tuple *to, enum way_kind kind)
{
	const __u32 *destination = address_words_const(&to->destination);
	const __u32 *source = address_words_const(&to->source);
	__u32 from = kind == WAY_ON || kind == WAY_BACK ? source[3] : 0;
	__u32 slot =
		(destination[3] ^ destination[2] ^ destination[1]) * 0x9e3779b1 + from * 0x85ebca6b;

	slot /= (1ull << 32) / WAYS;

	return dry_run ? 0 : bpf_map_lookup_elem(&ways, &slot);
}

/* Whether a packet of so many bytes can take it. */
static __always_inline int way_holds(struct workspace *w, const struct way *way,
				     const struct tuple *to, enum way_kind kind, __u32 device,
				     __u32 length)
{
	if (way->kind != kind || way->device != device || way->protocol != to->protocol ||
	    !address_same(&way->destination, &to->destination))
		return 0;
	if ((kind == WAY_ON || kind == WAY_BACK) && !address_same(&way->source, &to->source))
		return 0;
	return length - 1 < way->mtu && tick_of(w) - way->since < WAY_EXPIRY;
}

static __always_inline void way_take(const struct way *way, struct workspace *w)
{
	w->remembered = 1;
	w->fib.ifindex = way->next_device;
	mac_copy(w->fib.smac, way->macs);
	mac_copy(w->fib.dmac, way->macs + ETH_ALEN);
}

static __always_inline void way_keep(struct workspace *w, struct way *way, const struct tuple *to,
				     enum way_kind kind, __u32 device)
{
	const struct bpf_fib_lookup *fib = &w->fib;

	if (!is_ethernet(fib->ifindex))
		return;
	way->destination = to->destination;
	way->source = to->source;
	way->device = device;
	way->protocol = to->protocol;
	way->kind = kind;
	way->since = tick_of(w);
	way->next_device = fib->ifindex;
	way->mtu = fib->mtu_result;
	__builtin_memcpy(way->macs, fib->smac, sizeof(way->macs));
}
