/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Route lookups: the kernel's (bpf_fib_lookup), and the next-hop cache in front of it. */
#pragma once

#include <linux/bpf.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/types.h"
#include "packet/device.h"
#include "packet/length.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "route/fib_cache.h"
#include "route/maps.h"
#include "route/types.h"
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

/* Fills in the addresses of the packet's family. */
static __always_inline void fib_ask_addresses(struct scratch *w, const struct address *source,
					      const struct address *destination)
{
	struct bpf_fib_lookup *fib = &w->out.fib;

	if (w->packet.is_v6) {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, source, sizeof(struct address));
		__builtin_memcpy(fib->ipv6_dst, destination, sizeof(struct address));
	} else {
		fib->family = AF_INET;
		fib->ipv4_src = address_to_v4(source);
		fib->ipv4_dst = address_to_v4(destination);
	}
}

/* Looks up the route to the sender of the packet, by any device or (BPF_FIB_LOOKUP_OUTPUT) by the
 * one that it arrived by. */
static __always_inline long route_to_sender(struct context *ctx, struct scratch *w, __u32 flags)
{
	const struct tuple *sent = &w->packet.tuple;
	struct bpf_fib_lookup *fib = &w->out.fib;

	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = packet_device(ctx);
	fib->tot_len = 1; /* fits any MTU: the lookup of a packet that is too big tells no device */
	fib->l4_protocol = sent->protocol;
	fib_ask_addresses(w, &sent->destination, &sent->source);
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), flags);
}

/* Returns whether a route, or a rule, forbids packets to the sender of the packet: the stack sends
 * it no reply. Global function: the verifier checks it once. */
__noinline int sender_is_forbidden(struct context *ctx)
{
	struct scratch *w = scratch_get();
	enum routed routed;

	if (!w)
		return 0;
	routed = not_routed_by(route_to_sender(ctx, w, 0));
	return routed == ROUTE_BLACKHOLE || routed == ROUTE_UNREACHABLE ||
	       routed == ROUTE_PROHIBITED;
}

/* BPF_FIB_LOOKUP_MARK, since Linux 6.10: the lookup's mark is where the result's `smac` begins. */
#define FIB_LOOKUP_MARK (1U << 5)

/* Returns the MTU of the route that a lookup has found if it is below the device's, else 0: the
 * stack applies it to what it forwards, the lookup only if it is locked. */
static __always_inline __u32 route_mtu(struct scratch *w, const struct tuple *to)
{
	const volatile struct routing *routing = routing_get();
	const struct bpf_fib_lookup *fib = &w->out.fib;
	struct route_key *key = &w->out.key;
	const __u32 *mtu;
	__u32 least;

	if (!routing)
		return 0;
	least = w->packet.is_v6 ? routing->least_mtu6 : routing->least_mtu4;
	if (!least || routing->flags & ROUTE_MTUS_MISSING)
		return least;
	key->prefixlen = ROUTE_KEY_BITS;
	key->is_v6 = w->packet.is_v6;
	key->device = fib->ifindex;
	key->metric = fib->rt_metric;
	key->destination = to->destination;
	if (fib->family == AF_INET6)
		__builtin_memcpy(&key->next_hop, fib->ipv6_dst, sizeof(key->next_hop));
	else
		address_from_v4(&key->next_hop, fib->ipv4_dst);
	if (address_equal(&key->next_hop, &key->destination))
		__builtin_memset(&key->next_hop, 0, sizeof(key->next_hop));
	mtu = bpf_map_lookup_elem(&route_mtus, key);
	return mtu ? *mtu : 0;
}

static __always_inline __u32 device_mtu(struct context *ctx, __u32 device)
{
	__u32 mtu = 0;

	bpf_check_mtu(ctx, device, &mtu, 0, 0);
	return mtu;
}

/* Returns the result of a lookup that has called the packet too big, which may be because of a path
 * MTU that a socket has learned. By a route with an outer header that decides nothing:
 * fib_lookup_encap knows the route's MTU. */
static __always_inline long fib_lookup_too_big(struct context *ctx, struct scratch *w,
					       const struct tuple *to, __u32 length, __u32 flags)
{
	struct bpf_fib_lookup *fib = &w->out.fib;
	__u32 known = fib->mtu_result, mtu = 0;
	long result;

	if (w->packet.is_v6 || !length || !(routing_flags(ctx) & ROUTE_IGNORES_PMTU))
		return BPF_FIB_LKUP_RET_FRAG_NEEDED;
	fib->tot_len = 1; /* fits any MTU */
	result = bpf_fib_lookup(ctx, fib, sizeof(*fib), flags);
	if (result == BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return result;
	if (result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH)
		mtu = route_mtu(w, to);
	fib->mtu_result = mtu && mtu < known ? mtu : known;
	return BPF_FIB_LKUP_RET_FRAG_NEEDED;
}

/* Finds a route with an outer header, which the lookup does not return. Only tc can use it. */
static __always_inline enum routed fib_lookup_encap(struct context *ctx, struct scratch *w,
						    const struct tuple *to, __u32 length)
{
	struct network_key *key = &w->keys.network;
	const struct route_encap *route;
	__u32 mtu;

	key->prefixlen = 128;
	key->address = to->destination;
	route = bpf_map_lookup_elem(&route_encaps, key);
	if (!route || !route->device)
		return NOT_ROUTED;
	w->out.fib.ifindex = route->device;
	w->out.fib.family = AF_UNSPEC; /* packet_forward has the kernel look it up */
	mtu = route->mtu ? route->mtu : device_mtu(ctx, route->device);
	if (!mtu || length <= mtu)
		return ROUTED_BY_TC;
	w->out.fib.mtu_result = mtu;
	return ROUTED_TOO_BIG;
}

/* Looks up what `fib` in the scratch area asks for. Returns enum routed. Global function: the
 * verifier checks it once. It looks up the scratch area: keys of tables have to be there, not in an
 * argument (Linux 6.1). */
__noinline int fib_lookup_asked(struct context *ctx, const struct tuple *to, __u32 length,
				__u32 flags)
{
	struct scratch *w = scratch_get();
	long result;
	__u32 mtu;

	if (!w || !to)
		return NOT_ROUTED;
	w->out.too_big_at_output = 0;
	result = bpf_fib_lookup(ctx, &w->out.fib, sizeof(w->out.fib), flags);
	if (result < 0 && flags & FIB_LOOKUP_MARK) {
		flags &= ~FIB_LOOKUP_MARK;
		result = bpf_fib_lookup(ctx, &w->out.fib, sizeof(w->out.fib), flags);
	}
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		result = fib_lookup_too_big(ctx, w, to, length, flags);
	} else if (result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH) {
		mtu = route_mtu(w, to);
		if (mtu && (length > mtu || mtu < w->out.fib.mtu_result))
			w->out.fib.mtu_result = mtu;
		if (mtu && length > mtu) {
			w->out.too_big_at_output = w->packet.is_v6;
			return ROUTED_TOO_BIG;
		}
	}
	switch (result) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return ROUTED;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return ROUTED_BY_TC; /* tc makes the kernel resolve the neighbour */
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return ROUTED_TOO_BIG;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return fib_lookup_encap(ctx, w, to, length);
	default:
		return not_routed_by(result);
	}
}

/* Fills in the traffic class, by which the stack routes the packet. */
static __always_inline void fib_ask_tos(struct context *ctx, struct scratch *w)
{
	__be32 word;

	if (packet_load(ctx, w->packet.l3, &word, sizeof(word)))
		return;
	if (w->packet.is_v6)
		w->out.fib.flowinfo = word & bpf_htonl(0x0fffffff);
	else
		w->out.fib.tos = bpf_ntohl(word) >> 16;
}

/* Looks up the device and next hop to an address, for a packet of some length that arrived by a
 * device (flags 0) or is to leave by it (BPF_FIB_LOOKUP_OUTPUT). */
static __always_inline enum routed fib_lookup(struct context *ctx, struct scratch *w, __u32 length,
					      __u8 protocol, const struct tuple *to, __u32 device,
					      __u32 flags)
{
	__u32 mark, by = routing_flags(ctx);
	struct bpf_fib_lookup *fib = &w->out.fib;

	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = device;
	fib->tot_len = length < 0xffff ? length : 0xffff;
	fib->l4_protocol = protocol;
	if (by & ROUTED_BY_PORTS) {
		fib->sport = to->source_port;
		fib->dport = to->destination_port;
	}
	if (by & ROUTED_BY_TOS)
		fib_ask_tos(ctx, w);
	if (by & ROUTED_BY_MARK) {
		mark = packet_mark(ctx);
		__builtin_memcpy(fib->smac, &mark, sizeof(mark));
		flags |= FIB_LOOKUP_MARK;
	}
	fib_ask_addresses(w, &to->source, &to->destination);
	return fib_lookup_asked(ctx, to, length, flags);
}

/* Returns the tuple by which the stack routes a packet that becomes `to`: it translates the
 * destination before, the source afterwards. */
static __always_inline const struct tuple *asked_tuple(struct scratch *w, const struct tuple *to)
{
	const struct tuple *sent = &w->packet.tuple;
	struct tuple *asked = &w->out.asked;

	*asked = *sent;
	asked->destination = to->destination;
	if (has_ports(sent->protocol))
		asked->destination_port = to->destination_port;
	return asked;
}

/* A flag of fib_lookup_cached beside those of bpf_fib_lookup: the route is asked for by the tuple
 * that the packet is to have. */
#define FIB_LOOKUP_TRANSLATED (1U << 31)

/* fib_lookup for the packet in the scratch area, to be translated to `to`, with the next-hop cache.
 * Returns enum routed. Global function: the verifier checks it once. */
__noinline int fib_lookup_cached(struct context *ctx, struct scratch *w, const struct tuple *to,
				 __u32 device, __u32 flags)
{
	enum fib_kind kind = flags & BPF_FIB_LOOKUP_OUTPUT ? FIB_REPLY : FIB_FORWARD;
	__u32 length, by = routing_flags(ctx);
	enum routed routed;
	struct fib_entry *cached;

	if (!w || !to)
		return NOT_ROUTED;
	if (by & (ROUTED_BY_SOURCE | ROUTED_BY_PORTS) && !w->decap.dsr &&
	    !(flags & FIB_LOOKUP_TRANSLATED))
		to = asked_tuple(w, to);
	flags &= ~FIB_LOOKUP_TRANSLATED;
	length = wire_length(ctx, &w->packet);
	cached = fib_cache_place(to, kind, by);
	if (cached && fib_cache_valid(w, cached, to, kind, device, length)) {
		fib_cache_use(cached, w);
		return ROUTED;
	}
	w->out.fib_cached = 0;
	routed = fib_lookup(ctx, w, length, to->protocol, to, device, flags);
	if (cached && routed == ROUTED && length)
		fib_cache_store(w, cached, to, kind, device);
	return routed;
}

static __always_inline enum routed route(struct context *ctx, struct scratch *w,
					 const struct tuple *to)
{
	return fib_lookup_cached(ctx, w, to, packet_device(ctx), 0);
}

/* Looks up the route of a packet with SNAT, w->ct.entry.xlate, and sets its source; unspecified if
 * there is none. Returns enum routed. Global function: the verifier checks it once. */
__noinline int route_snat(struct context *ctx, struct scratch *w)
{
	__u32 length, device = packet_device(ctx), by = routing_flags(ctx);
	const struct address *own;
	const struct tuple *asked;
	enum routed routed;
	struct tuple *to;
	struct fib_entry *cached;

	if (!w)
		return NOT_ROUTED;
	to = &w->ct.entry.xlate;
	length = wire_length(ctx, &w->packet);
	cached = by & ROUTED_BY_SOURCE ? 0 : fib_cache_place(to, FIB_SNAT, by);
	if (cached && fib_cache_valid(w, cached, to, FIB_SNAT, device, length)) {
		fib_cache_use(cached, w);
		to->source = cached->source;
		return ROUTED;
	}
	__builtin_memset(&to->source, 0, sizeof(to->source));
	w->out.fib_cached = 0;
	asked = by & (ROUTED_BY_SOURCE | ROUTED_BY_PORTS) ? asked_tuple(w, to) : to;
	routed = fib_lookup(ctx, w, length, to->protocol, asked, device, 0);
	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return routed;
	own = address_on(w->out.fib.ifindex, w->packet.is_v6);
	if (!own)
		return routed;
	to->source = *own;
	if (cached && routed == ROUTED && length)
		fib_cache_store(w, cached, to, FIB_SNAT, device);
	return routed;
}

/* Looks up the route of a reply by the device that the client's packets arrive by: one that the
 * stack would find by the backend's address, or else the one by the Service's address, for rules by
 * the addresses of a node with several NICs. That is not asked with BPF_FIB_LOOKUP_OUTPUT, with
 * which IPv6 ignores rules by the source. The result may have another device. */
static __always_inline enum routed route_by_client_device(struct context *ctx, struct scratch *w,
							  const struct tuple *to, __u32 device)
{
	enum routed routed = fib_lookup_cached(ctx, w, to, device, BPF_FIB_LOOKUP_OUTPUT);

	if (!(routing_flags(ctx) & (ROUTED_BY_SOURCE | ROUTED_BY_PORTS)) ||
	    (!not_routed(routed) && w->out.fib.ifindex == device))
		return routed;
	return fib_lookup_cached(ctx, w, to, packet_device(ctx), FIB_LOOKUP_TRANSLATED);
}

/* Looks up the route of a reply: by the device that the client's packets arrive by, if a route to
 * the client uses it. */
static __always_inline enum routed route_reply(struct context *ctx, struct scratch *w,
					       const struct tuple *to, __u32 device)
{
	enum routed routed = NOT_ROUTED;

	if (device)
		routed = route_by_client_device(ctx, w, to, device);
	if (!not_routed(routed) && w->out.fib.ifindex == device)
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
