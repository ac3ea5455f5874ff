/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ways on which a packet leaves the edge: back as an answer, on to a next hop, or
 * into the node's stack. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "edge_tables.h"
#include "encapsulate.h"
#include "fragment.h"
#include "packet.h"
#include "strip.h"
#include "tell.h"
#include "track.h"
#include "way.h"

#define AF_INET	 2
#define AF_INET6 10

/* Sends the answer that a packet has become. */
static __always_inline int answer(struct context *ctx, const struct workspace *w,
				  enum answered answered, enum edge_reason reason)
{
#ifdef EDGE_XDP
	/* The driver's buffer ends with the packet: tc gets larger ones. */
	if (answered == ANSWER_NO_ROOM)
		return leave_alone(ctx, EDGE_TO_TC);
#endif
	if (answered == ANSWER_FAILED || answered == ANSWER_NO_ROOM)
		return lose(ctx, w, EDGE_DROP_FAULT);
	if (answered == ANSWER_NOT_DUE)
		return lose(ctx, w, EDGE_DROP_RATE);
	edge_count(reason);
	tell(ctx, w, reason);
	return w->leaving ? packet_return(ctx) : packet_bounce(ctx);
}

static __always_inline int refuse(struct context *ctx, const struct workspace *w)
{
	const struct packet *p = &w->packet;

	if (p->tuple.protocol == IPPROTO_TCP)
		return answer(ctx, w, answer_reset(ctx, p), EDGE_REJECTED);
	return answer(ctx, w, answer_error(ctx, p, &p->tuple.destination, ICMP_PORT_UNREACHABLE, 0),
		      EDGE_REJECTED);
}

static __always_inline const struct address *if_specified(const struct address *a)
{
	return address_is_unspecified(a) ? 0 : a;
}

/* The node's address on a device. */
static __always_inline const struct address *address_on(__u32 device, int is_v6)
{
	struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);

	return found ? if_specified(is_v6 ? &found->source6 : &found->source4) : 0;
}

/* What is put around packets that leave by a device has this as its source. */
static __always_inline const struct address *outer_source_on(__u32 device, int is_v6)
{
	struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);

	return found ? if_specified(is_v6 ? &found->outer6 : &found->outer4) : 0;
}

/* It is the node at which the packet's hops end (RFC 792, RFC 4443 section 3.3). No
 * answer to the rest of a datagram whose beginning has one (RFC 1122 section 3.2.2). */
static __always_inline int out_of_hops(struct context *ctx, const struct workspace *w)
{
	const struct packet *p = &w->packet;
	const struct address *own = address_on(packet_device(ctx), p->is_v6);

	if (!own || p->fragment == FRAGMENT_LATER)
		return lose(ctx, w, EDGE_DROP_HOPS);
	return answer(ctx, w, answer_error(ctx, p, own, ICMP_TIME_EXCEEDED, 0), EDGE_DROP_HOPS);
}

/* A packet that is too big for the next hop is cut apart if it may be; else whoever it asks
 * says so (RFC 1191, RFC 8201): the Service to its client, the node to a backend. No
 * answer to the rest of a datagram (RFC 1122 section 3.2.2). Not static: the verifier looks
 * at it once. */
__noinline int too_big(struct context *ctx)
{
	__u32 zero = 0, mtu;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	const struct packet *p;

	if (!w)
		return packet_drop(ctx);
	p = &w->packet;
	mtu = w->fib.mtu_result - dsr_overhead(w->dsr, p->is_v6);
	if (may_fragment(ctx, p)) {
#ifdef EDGE_XDP
		return leave_alone(ctx, EDGE_TO_TC);
#else
		int result;

		if (dry_run)
			return leave_alone(ctx, EDGE_FRAGMENTED);
		result = fragment(ctx, mtu);
		if (result < 0)
			return lose(ctx, w, EDGE_DROP_TOO_BIG);
		edge_count(EDGE_FRAGMENTED);
		return result;
#endif
	}
	if (p->fragment == FRAGMENT_LATER || !(p->is_v6 || dont_fragment(ctx, p)))
		return lose(ctx, w, EDGE_DROP_TOO_BIG);
	return answer(ctx, w, answer_error(ctx, p, &p->tuple.destination, ICMP_TOO_BIG, mtu),
		      EDGE_DROP_TOO_BIG);
}

enum routed {
	ROUTED,
	ROUTED_BY_TC,
	NOT_ROUTED,
	ROUTED_TOO_BIG,
	ROUTED_WITHOUT_ADDRESS, /* to send in the node's name */
	/* net.ipv4.conf.DEVICE.forwarding or its counterpart of IPv6 is 0: the kernel looks up no
	 * way for what comes by the device. */
	FORWARDING_OFF,
};

static __always_inline int not_routed(enum routed routed)
{
	return routed == NOT_ROUTED || routed == FORWARDING_OFF;
}

/* Why a packet is lost that is not routed. */
static __always_inline enum edge_reason why_not_routed(enum routed routed)
{
	return routed == FORWARDING_OFF ? EDGE_DROP_FORWARDING : EDGE_DROP_NO_ROUTE;
}

/* The length on the wire, from the IP header on: of one, if several were put together;
 * 0 if the kernel knows that they fit (SCTP makes them itself). */
static __always_inline __u32 wire_length(struct context *ctx, const struct packet *p)
{
	__u32 segment = packet_segment(ctx), header = sizeof(struct udphdr);
	__u8 words; /* of TCP's header: the high four bits of its byte 12 */

	if (!segment)
		return p->length;
	if (p->tuple.protocol == IPPROTO_SCTP)
		return 0;
	if (p->tuple.protocol == IPPROTO_TCP)
		header =
			packet_load(ctx, p->l4 + 12, &words, sizeof(words)) ? 20 : (words >> 4) * 4;
	return p->l4 - p->l3 + header + segment;
}

/* The device and next hop towards an address, for a packet of some length that has come by
 * a device (flags 0) or is to leave by it (BPF_FIB_LOOKUP_OUTPUT). */
static __always_inline enum routed route_of(struct context *ctx, __u32 length, int is_v6,
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
		return ROUTED_BY_TC; /* which has the kernel ask for it */
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return ROUTED_TOO_BIG;
	return result == BPF_FIB_LKUP_RET_FWD_DISABLED ? FORWARDING_OFF : NOT_ROUTED;
}

/* The same for the workspace's packet, which is to become `to`, unless the way is known. Not
 * static: the verifier looks at it once. Returns enum routed. */
__noinline int route_known(struct context *ctx, struct workspace *w, const struct tuple *to,
			   __u32 device, __u32 flags)
{
	enum way_kind kind = flags & BPF_FIB_LOOKUP_OUTPUT ? WAY_BACK : WAY_ON;
	enum routed routed;
	struct way *way;
	__u32 length;

	if (!w || !to)
		return NOT_ROUTED;
	length = wire_length(ctx, &w->packet);
	way = way_of(to, kind);
	if (way && way_holds(w, way, to, kind, device, length)) {
		way_take(way, w);
		return ROUTED;
	}
	w->remembered = 0;
	routed = route_of(ctx, length, w->packet.is_v6, to->protocol, to, &w->fib, device, flags);
	if (way && routed == ROUTED && length)
		way_keep(w, way, to, kind, device);
	return routed;
}

static __always_inline enum routed route(struct context *ctx, struct workspace *w,
					 const struct tuple *to)
{
	return route_known(ctx, w, to, packet_device(ctx), 0);
}

/* The way of a packet that is to leave in the node's name: w->track.becomes, of which it finds
 * the source; unspecified if there is none. Not static: the verifier looks at it once. Returns
 * enum routed. */
__noinline int route_own(struct context *ctx, struct workspace *w)
{
	__u32 length, device = packet_device(ctx);
	const struct address *own;
	enum routed routed;
	struct tuple *to;
	struct way *way;

	if (!w)
		return NOT_ROUTED;
	to = &w->track.becomes;
	length = wire_length(ctx, &w->packet);
	way = way_of(to, WAY_OWN);
	if (way && way_holds(w, way, to, WAY_OWN, device, length)) {
		way_take(way, w);
		to->source = way->source;
		return ROUTED;
	}
	__builtin_memset(&to->source, 0, sizeof(to->source));
	w->remembered = 0;
	routed = route_of(ctx, length, w->packet.is_v6, to->protocol, to, &w->fib, device, 0);
	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return routed;
	own = address_on(w->fib.ifindex, w->packet.is_v6);
	if (!own)
		return routed;
	to->source = *own;
	if (way && routed == ROUTED && length)
		way_keep(w, way, to, WAY_OWN, device);
	return routed;
}

/* The way of an answer: by the device that the client's packets come by, if one to the
 * client leads there. */
static __always_inline enum routed route_back(struct context *ctx, struct workspace *w,
					      const struct tuple *to, __u32 device)
{
	enum routed routed = NOT_ROUTED;

	if (device)
		routed = route_known(ctx, w, to, device, BPF_FIB_LOOKUP_OUTPUT);
	if (!not_routed(routed) && w->fib.ifindex == device)
		return routed;
	return route(ctx, w, to);
}

#ifdef EDGE_XDP
/* XDP sends back by the device that it has received from, and to neighbours that are known; all
 * else tc can do. XDP_REDIRECT would take a packet to another device only while that device's
 * driver has queues for it, which come and go with XDP programs and settings of others there;
 * meanwhile the kernel would drop the packets, and no program would know. */
static __always_inline int left_to_tc(struct context *ctx, enum routed routed,
				      const struct bpf_fib_lookup *fib)
{
	return routed == ROUTED_BY_TC || (routed == ROUTED && fib->ifindex != packet_device(ctx));
}
#endif

/* What has been cut apart here has the rest of the packet behind it; Ethernet pads no frame
 * that is so long. */
static __always_inline int trim_fragment(struct context *ctx, const struct packet *p)
{
	__u32 end = p->l3 + p->length;

	if (!p->fragment || p->is_v6 || end < ETH_ZLEN || end >= packet_length(ctx))
		return 0;
	return packet_trim(ctx, end);
}

/* Gives a packet its other ends, and counts it. On error it is to be lost. */
static __always_inline int change(struct context *ctx, struct workspace *w, int hops,
				  enum edge_reason reason)
{
	enum stripped stripped = w->wrapping.dsr ? strip(ctx) : STRIPPED;

	if (stripped == STRIP_FAILED || trim_fragment(ctx, &w->packet))
		return -1;
	if (stripped == STRIPPED && packet_translate(ctx, &w->packet, &w->to, hops))
		return -1;
	edge_count(reason);
	if (reason == EDGE_NEW || reason == EDGE_ADOPTED)
		tell(ctx, w, reason);
	return 0;
}

/* Whether a datagram of somebody else would leave in this node's name as one that a balancer
 * has encapsulated: the backend's node would believe what is inside, for it believes nodes. */
static __always_inline int passes_for_balancer(struct context *ctx, const struct workspace *w)
{
	const struct packet *p = &w->packet;
	const struct geneve_v4 *geneve;

	if (w->to.protocol != IPPROTO_UDP || w->to.destination_port != bpf_htons(GENEVE_PORT) ||
	    p->fragment == FRAGMENT_LATER)
		return 0;
	geneve = packet_bytes(ctx, p->l4 + sizeof(struct udphdr), sizeof(*geneve));
	return geneve && geneve->option.class == bpf_htons(GENEVE_OPTION_CLASS) &&
	       geneve->option.type == GENEVE_OPTION_BACKEND;
}

/* Sends a packet on, in whatever direction. */
static __always_inline int send_on(struct context *ctx, struct workspace *w, enum routed routed,
				   enum edge_reason reason)
{
	if (not_routed(routed))
		return lose(ctx, w, why_not_routed(routed));
	if (passes_for_balancer(ctx, w))
		return lose(ctx, w, EDGE_DROP_SPOOFED);
	if (change(ctx, w, 1, reason))
		return lose(ctx, w, EDGE_DROP_FAULT);
	return packet_forward(ctx, &w->fib, w->remembered);
}

/* To a backend of this node, or from it: the stack knows the way. */
static __always_inline int hand_over(struct context *ctx, struct workspace *w,
				     enum edge_reason reason)
{
	if (change(ctx, w, 0, reason))
		return lose(ctx, w, EDGE_DROP_FAULT);
	return packet_pass(ctx);
}
