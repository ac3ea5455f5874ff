/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Route lookups: the kernel's (bpf_fib_lookup), and the next-hop cache in front of it. */
#pragma once

#include <linux/bpf.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/types.h"
#include "packet/device.h"
#include "packet/length.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "route/fib_cache.h"
#include "state/scratch.h"
#include "state/types.h"

static __always_inline const struct address *if_specified(const struct address *a)
{
	return address_is_unspecified(a) ? 0 : a;
}

/* Returns the node's address on a device. */
static __always_inline const struct address *address_on(__u32 device, int is_v6)
{
	struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);

	return found ? if_specified(is_v6 ? &found->source6 : &found->source4) : 0;
}

/* Returns the source of outer headers on a device. */
static __always_inline const struct address *outer_source_on(__u32 device, int is_v6)
{
	struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);

	return found ? if_specified(is_v6 ? &found->outer6 : &found->outer4) : 0;
}

enum routed {
	ROUTED,
	ROUTED_BY_TC,
	NOT_ROUTED, /* no route, or to the node itself */
	/* What a route, or a rule, says instead of a next hop. */
	ROUTE_BLACKHOLE,
	ROUTE_UNREACHABLE,
	ROUTE_PROHIBITED,
	ROUTED_TOO_BIG,
	ROUTED_WITHOUT_ADDRESS, /* no address for SNAT */
	/* net.ipv4.conf.DEVICE.forwarding, or its IPv6 counterpart, is 0: the kernel does not look
	 * up routes for packets that arrived by the device. */
	FORWARDING_OFF,
};

static __always_inline int not_routed(enum routed routed)
{
	return (routed >= NOT_ROUTED && routed <= ROUTE_PROHIBITED) || routed == FORWARDING_OFF;
}

/* Returns what a result of bpf_fib_lookup that tells no next hop means. */
static __always_inline enum routed not_routed_by(long result)
{
	switch (result) {
	case BPF_FIB_LKUP_RET_BLACKHOLE:
		return ROUTE_BLACKHOLE;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
		return ROUTE_UNREACHABLE;
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return ROUTE_PROHIBITED;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return FORWARDING_OFF;
	default:
		return NOT_ROUTED;
	}
}

/* Looks up the device and next hop to an address, for a packet of some length that arrived by a
 * device (flags 0) or is to leave by it (BPF_FIB_LOOKUP_OUTPUT). */
static __always_inline enum routed fib_lookup(struct context *ctx, __u32 length, int is_v6,
					      __u8 protocol, const struct tuple *to,
					      struct bpf_fib_lookup *fib, __u32 device, __u32 flags)
{
	long result;

	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = device;
	fib->tot_len = length < 0xffff ? length : 0xffff;
	fib->l4_protocol = protocol;
	if (is_v6) {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, &to->source, sizeof(struct address));
		__builtin_memcpy(fib->ipv6_dst, &to->destination, sizeof(struct address));
	} else {
		fib->family = AF_INET;
		fib->ipv4_src = address_to_v4(&to->source);
		fib->ipv4_dst = address_to_v4(&to->destination);
	}
	result = bpf_fib_lookup(ctx, fib, sizeof(*fib), flags);
	if (result == BPF_FIB_LKUP_RET_SUCCESS)
		return ROUTED;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
		return ROUTED_BY_TC; /* tc makes the kernel resolve the neighbour */
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return ROUTED_TOO_BIG;
	return not_routed_by(result);
}

/* fib_lookup for the packet in the scratch area, to be translated to `to`, with the next-hop cache.
 * Returns enum routed. Global function: the verifier checks it once. */
__noinline int fib_lookup_cached(struct context *ctx, struct scratch *w, const struct tuple *to,
				 __u32 device, __u32 flags)
{
	enum fib_kind kind = flags & BPF_FIB_LOOKUP_OUTPUT ? FIB_REPLY : FIB_FORWARD;
	enum routed routed;
	struct fib_entry *cached;
	__u32 length;

	if (!w || !to)
		return NOT_ROUTED;
	length = wire_length(ctx, &w->packet);
	cached = fib_cache_place(to, kind);
	if (cached && fib_cache_valid(w, cached, to, kind, device, length)) {
		fib_cache_use(cached, w);
		return ROUTED;
	}
	w->fib_cached = 0;
	routed = fib_lookup(ctx, length, w->packet.is_v6, to->protocol, to, &w->fib, device, flags);
	if (cached && routed == ROUTED && length)
		fib_cache_store(w, cached, to, kind, device);
	return routed;
}

static __always_inline enum routed route(struct context *ctx, struct scratch *w,
					 const struct tuple *to)
{
	return fib_lookup_cached(ctx, w, to, packet_device(ctx), 0);
}

/* Looks up the route of a packet with SNAT, w->ct.xlate, and sets its source; unspecified if there
 * is none. Returns enum routed. Global function: the verifier checks it once. */
__noinline int route_snat(struct context *ctx, struct scratch *w)
{
	__u32 length, device = packet_device(ctx);
	const struct address *own;
	enum routed routed;
	struct tuple *to;
	struct fib_entry *cached;

	if (!w)
		return NOT_ROUTED;
	to = &w->ct.xlate;
	length = wire_length(ctx, &w->packet);
	cached = fib_cache_place(to, FIB_SNAT);
	if (cached && fib_cache_valid(w, cached, to, FIB_SNAT, device, length)) {
		fib_cache_use(cached, w);
		to->source = cached->source;
		return ROUTED;
	}
	__builtin_memset(&to->source, 0, sizeof(to->source));
	w->fib_cached = 0;
	routed = fib_lookup(ctx, length, w->packet.is_v6, to->protocol, to, &w->fib, device, 0);
	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return routed;
	own = address_on(w->fib.ifindex, w->packet.is_v6);
	if (!own)
		return routed;
	to->source = *own;
	if (cached && routed == ROUTED && length)
		fib_cache_store(w, cached, to, FIB_SNAT, device);
	return routed;
}

/* Looks up the route of a reply: by the device that the client's packets arrive by, if a route to
 * the client uses it. */
static __always_inline enum routed route_reply(struct context *ctx, struct scratch *w,
					       const struct tuple *to, __u32 device)
{
	enum routed routed = NOT_ROUTED;

	if (device)
		routed = fib_lookup_cached(ctx, w, to, device, BPF_FIB_LOOKUP_OUTPUT);
	if (!not_routed(routed) && w->fib.ifindex == device)
		return routed;
	return route(ctx, w, to);
}

#ifdef EDGE_XDP
/* Returns whether XDP must pass a packet to tc. XDP sends only out of the input device, and to
 * resolved neighbours. XDP_REDIRECT to another device works only while its driver has XDP transmit
 * queues, which depend on XDP programs and settings there; without them the kernel drops packets,
 * and the program does not notice. */
static __always_inline int needs_tc(struct context *ctx, enum routed routed,
				    const struct bpf_fib_lookup *fib)
{
	return routed == ROUTED_BY_TC || (routed == ROUTED && fib->ifindex != packet_device(ctx));
}
#endif
