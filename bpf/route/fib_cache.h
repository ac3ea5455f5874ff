/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The next-hop cache: recent results of route lookups. All flows between two addresses use the same
 * next hop, and a lookup costs as much as all other work for a packet. Entries expire quickly, so
 * that changes of routes, neighbours and devices take effect. Caches only next hops on Ethernet:
 * unreachable destinations and tunnels without MAC addresses are looked up each time. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/access.h"
#include "packet/device.h"
#include "packet/types.h"
#include "route/types.h"
#include "state/scratch.h"

#define FIB_CACHE_ENTRIES 1024
/* Lifetime in ticks (set_table/set_table.h): 50 ms, so that it does not depend on the length of a
 * jiffy. */
#define FIB_CACHE_EXPIRY  48

/* The kind of lookup that an entry is for. */
enum fib_kind {
	FIB_UNUSED,  /* the entry is empty */
	FIB_FORWARD, /* any output device, for a packet that came by `device`, between two addresses
		      */
	FIB_REPLY,   /* by a given output device, between two addresses */
	FIB_SNAT,  /* like FIB_FORWARD, to a destination; the source is the result of the lookup */
	FIB_OUTER, /* like FIB_SNAT; the source is that of an outer header (DSR) */
};

/* One cache line, so it has only the fields of struct bpf_fib_lookup that forwarding needs. */
struct fib_entry {
	struct address destination;
	struct address source;
	__u32 since; /* tick of the lookup */
	__u32 unused;
	__u32 device;	   /* input device; FIB_REPLY: output device */
	__u32 next_device; /* output device of the result */
	__u16 mtu;
	__u8 protocol; /* routing rules may match it */
	__u8 kind;
	__u8 macs[2 * ETH_ALEN]; /* `smac` and `dmac` */
};

_Static_assert(sizeof(struct fib_entry) == 64 &&
		       offsetof(struct bpf_fib_lookup, dmac) ==
			       offsetof(struct bpf_fib_lookup, smac) + ETH_ALEN,
	       "as it is copied");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIB_CACHE_ENTRIES);
	__type(key, __u32);
	__type(value, struct fib_entry);
} fib_cache SEC(".maps");

/* Returns the entry of a lookup. Per CPU, and bottom halves are off, so no other packet uses it
 * meanwhile. None if the kernel routes by more (`by`, enum routing_flag) than what an entry has. */
static __always_inline struct fib_entry *fib_cache_place(const struct tuple *to, enum fib_kind kind,
							 __u32 by)
{
	const __u32 *destination = address_words_const(&to->destination);
	const __u32 *source = address_words_const(&to->source);
	__u32 from = kind == FIB_FORWARD || kind == FIB_REPLY ? source[3] : 0;
	__u32 slot =
		(destination[3] ^ destination[2] ^ destination[1]) * 0x9e3779b1 + from * 0x85ebca6b;

	slot /= (1ull << 32) / FIB_CACHE_ENTRIES;

	if (dry_run || by & (ROUTED_BY_PORTS | ROUTED_BY_TOS | ROUTED_BY_MARK))
		return 0;
	return bpf_map_lookup_elem(&fib_cache, &slot);
}

/* Returns whether an entry is for this lookup, has not expired, and has an MTU that the packet
 * fits. */
static __always_inline int fib_cache_valid(struct scratch *w, const struct fib_entry *cached,
					   const struct tuple *to, enum fib_kind kind, __u32 device,
					   __u32 length)
{
	if (cached->kind != kind || cached->device != device || cached->protocol != to->protocol ||
	    !address_same(&cached->destination, &to->destination))
		return 0;
	if ((kind == FIB_FORWARD || kind == FIB_REPLY) &&
	    !address_same(&cached->source, &to->source))
		return 0;
	return length - 1 < cached->mtu && w->clock.tick - cached->since < FIB_CACHE_EXPIRY;
}

static __always_inline void fib_cache_use(const struct fib_entry *cached, struct scratch *w)
{
	w->out.fib_cached = 1;
	w->out.fib.ifindex = cached->next_device;
	mac_copy(w->out.fib.smac, cached->macs);
	mac_copy(w->out.fib.dmac, cached->macs + ETH_ALEN);
}

static __always_inline void fib_cache_store(struct scratch *w, struct fib_entry *cached,
					    const struct tuple *to, enum fib_kind kind,
					    __u32 device)
{
	const struct bpf_fib_lookup *fib = &w->out.fib;

	if (!is_ethernet(fib->ifindex))
		return;
	cached->destination = to->destination;
	cached->source = to->source;
	cached->device = device;
	cached->protocol = to->protocol;
	cached->kind = kind;
	cached->since = w->clock.tick;
	cached->next_device = fib->ifindex;
	cached->mtu = fib->mtu_result;
	__builtin_memcpy(cached->macs, fib->smac, sizeof(cached->macs));
}
