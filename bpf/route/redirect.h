/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How a packet leaves the edge: as a reply, to a next hop, or to the node's stack. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/fragments.h"
#include "encap/decap.h"
#include "encap/encap.h"
#include "encap/wire.h"
#include "icmp/message_sum.h"
#include "icmp/reply.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/length.h"
#include "packet/packet.h"
#include "route/fib.h"
#include "route/fragment.h"
#include "state/events.h"
#include "state/losses.h"
#include "state/scratch.h"
#include "state/types.h"

/* Sends the reply that has replaced the packet. */
static __always_inline enum action send_reply(struct context *ctx, const struct scratch *w,
					      enum reply_result reply, enum edge_reason reason)
{
#ifdef EDGE_XDP
	/* The XDP buffer has no room after the packet; tc can extend it. */
	if (reply == REPLY_NO_TAILROOM)
		return pass(ctx, EDGE_TO_TC);
#endif
	if (reply == REPLY_FAILED || reply == REPLY_NO_TAILROOM)
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	if (reply == REPLY_RATE_LIMITED)
		return drop(ctx, EDGE_ICMP_RATE_LIMITED);
	note_event(ctx, reason);
	return w->in.egress ? packet_redirect_ingress(ctx) : packet_bounce(ctx);
}

/* Replaces the packet by an ICMP error about it, from the address that was asked: the stack
 * translates the source of its errors like that of the flow's packets. No error goes to where a
 * route forbids packets, nor about a later fragment (RFC 1122 section 3.2.2). Global function: the
 * verifier checks it once. */
__noinline enum action send_error(struct context *ctx, enum icmp_error error, __u32 mtu,
				  enum edge_reason reason)
{
	struct scratch *w = scratch_get();
	const struct packet *p;

	if (!w)
		return packet_drop(ctx);
	p = &w->packet;
	if (p->fragment == FRAGMENT_LATER)
		return drop(ctx, reason);
	if (sender_is_forbidden(ctx))
		return drop(ctx, EDGE_DROP_NO_ROUTE);
	return send_reply(ctx, w, reply_icmp_error(ctx, p, &p->tuple.destination, error, mtu),
			  reason);
}

/* Refuses the packet: TCP with a segment, other protocols with an ICMP error. No reply to RST (RFC
 * 9293 section 3.10.7.1), nor to ABORT of SCTP, nor to later fragments, nor, as by netfilter, to a
 * wrong checksum. Global function: the verifier checks it once. */
__noinline enum action reject(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const struct packet *p;

	if (!w)
		return packet_drop(ctx);
	p = &w->packet;
	if (p->tcp_flags & TCP_RST || p->fragment == FRAGMENT_LATER)
		return drop(ctx, EDGE_REJECTED);
	if ((p->tuple.protocol == IPPROTO_TCP || p->tuple.protocol == IPPROTO_UDP) &&
	    !segment_sum_is_right(ctx))
		return drop(ctx, EDGE_DROP_INVALID);
	if (p->tuple.protocol != IPPROTO_TCP)
		return send_error(ctx, ICMP_PORT_UNREACHABLE, 0, EDGE_REJECTED);
	if (sender_is_forbidden(ctx))
		return drop(ctx, EDGE_DROP_NO_ROUTE);
	return send_reply(ctx, w, reply_tcp_reset(ctx, p), EDGE_REJECTED);
}

/* Replies with time exceeded (RFC 792, RFC 4443 section 3.3). */
static __always_inline enum action ttl_exceeded(struct context *ctx)
{
	return send_error(ctx, ICMP_TIME_EXCEEDED, 0, EDGE_TTL_EXCEEDED);
}

/* Drops a packet for which there is no next hop, with the ICMP error that the stack sends
 * (ip_error, ip6_pkt_drop): none of a black hole, nor if forwarding is off. Global function: the
 * verifier checks it once. */
__noinline enum action no_route(struct context *ctx, __u32 routed)
{
	struct scratch *w = scratch_get();

	if (!w)
		return packet_drop(ctx);
	switch (routed) {
	case FORWARDING_OFF:
		return drop(ctx, EDGE_DROP_FORWARDING);
	case ROUTE_BLACKHOLE:
		return drop(ctx, EDGE_DROP_NO_ROUTE);
	case ROUTE_PROHIBITED:
		return send_error(ctx, ICMP_PROHIBITED, 0, EDGE_DROP_NO_ROUTE);
	case ROUTE_UNREACHABLE:
		if (!w->packet.is_v6)
			return send_error(ctx, ICMP_HOST_UNREACHABLE, 0, EDGE_DROP_NO_ROUTE);
		/* fall through */
	default:
		return send_error(ctx, ICMP_NO_ROUTE, 0, EDGE_DROP_NO_ROUTE);
	}
}

/* no_route for a client's packet to a backend. `asked` is the destination of the route lookup. */
static __always_inline enum action no_route_to(struct context *ctx, const struct address *backend,
					       const struct address *asked, enum routed routed)
{
	if (routed != FORWARDING_OFF)
		count_loss(backend, asked, EDGE_DROP_NO_ROUTE);
	return no_route(ctx, routed);
}

/* Drops a client's packet that may not leave its link, with the stack's error (ip6_forward). */
static __always_inline enum action beyond_scope(struct context *ctx)
{
	return send_error(ctx, ICMP_BEYOND_SCOPE, 0, EDGE_DROP_SCOPE);
}

/* Fragments a packet that exceeds the MTU, or replies with an ICMP error (RFC 1191, RFC 8201): to a
 * client from the Service's address, to a backend from the node's. Global function: the verifier
 * checks it once. */
__noinline enum action too_big(struct context *ctx)
{
	__u32 mtu;
	struct scratch *w = scratch_get();
	const struct packet *p;

	if (!w)
		return packet_drop(ctx);
	p = &w->packet;
	mtu = w->out.fib.mtu_result - dsr_overhead(w->encap.dsr, p->is_v6);
	if (may_fragment(ctx, p)) {
#ifdef EDGE_XDP
		return pass(ctx, EDGE_TO_TC);
#else
		enum action action;

		if (dry_run)
			return pass(ctx, EDGE_FRAGMENTED);
		action = fragment(ctx, mtu);
		if (action == ACTION_CONTINUE)
			return drop(ctx, EDGE_DROP_TOO_BIG);
		edge_count(EDGE_FRAGMENTED);
		return action;
#endif
	}
	if (p->fragment == FRAGMENT_LATER || !(p->is_v6 || dont_fragment(ctx, p)))
		return drop(ctx, EDGE_DROP_TOO_BIG);
	if (w->out.too_big_at_output && w->encap.dsr == DSR_NONE && !w->in.egress)
		packet_decrement_ttl(ctx, p);
	return send_error(ctx, ICMP_TOO_BIG, mtu, EDGE_DROP_TOO_BIG);
}

/* Returns where a frame ends that leaves with a packet. Not every driver pads what XDP sends to the
 * shortest frame of Ethernet. */
static __always_inline __u32 frame_end(const struct packet *p)
{
	__u32 end = packet_end(p), shortest = ETH_ZLEN - ETH_HLEN + LINK_HEADER;

	return end < shortest ? shortest : end;
}

/* Returns whether finish_frame has anything to do for a packet that leaves. */
static __always_inline int is_frame_unfinished(struct context *ctx, const struct packet *p)
{
	return p->fragment || packet_has_trailer(ctx, frame_end(p));
}

/* Notes that a fragment leaves, and removes what follows a packet in its frame. After an error drop
 * the packet. Global function: the verifier checks it once. */
__noinline int finish_frame(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const struct packet *p;

	if (!w)
		return -1;
	p = &w->packet;
	if (p->fragment)
		fragment_leaves(ctx, p);
	return frame_trim(ctx, frame_end(p));
}

/* Translates a packet, and counts it. After an error drop the packet. */
static __always_inline int rewrite(struct context *ctx, struct scratch *w, int hops,
				   enum edge_reason reason)
{
	enum decap_result decapped = w->decap.dsr ? decap_strip(ctx) : DECAP_DONE;

	if (decapped == DECAP_FAILED)
		return -1;
	if ((hops ? is_frame_unfinished(ctx, &w->packet) : w->packet.fragment) && finish_frame(ctx))
		return -1;
	if (decapped == DECAP_DONE && packet_translate(ctx, &w->packet, &w->out.to, hops))
		return -1;
	edge_count(reason);
	if (reason == EDGE_NEW || reason == EDGE_RECOVERED)
		emit_event(ctx, w, reason);
	return 0;
}

/* Returns whether a client's datagram would leave with this node's address and look like a
 * balancer's: the backend's node would accept it, because it trusts nodes. */
static __always_inline int looks_like_balancer(struct context *ctx, const struct scratch *w)
{
	const struct packet *p = &w->packet;
	const struct geneve_v4 *geneve;

	if (w->out.to.protocol != IPPROTO_UDP ||
	    w->out.to.destination_port != bpf_htons(GENEVE_PORT) || p->fragment == FRAGMENT_LATER)
		return 0;
	geneve = packet_bytes(ctx, p->l4 + sizeof(struct udphdr), sizeof(*geneve));
	return geneve && geneve->option.class == bpf_htons(GENEVE_OPTION_CLASS) &&
	       geneve->option.type == GENEVE_OPTION_BACKEND;
}

/* Forwards a packet to its next hop, in either direction. */
static __always_inline enum action forward(struct context *ctx, struct scratch *w,
					   enum routed routed, enum edge_reason reason)
{
	if (not_routed(routed))
		return no_route(ctx, routed);
	if (looks_like_balancer(ctx, w))
		return drop(ctx, EDGE_DROP_SPOOFED);
	if (rewrite(ctx, w, 1, reason))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	return packet_forward(ctx, &w->out.fib, w->out.fib_cached);
}

/* Delivers a packet to or from a backend on this node through the stack. */
static __always_inline enum action deliver_local(struct context *ctx, struct scratch *w,
						 enum edge_reason reason)
{
	if (rewrite(ctx, w, 0, reason))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	return packet_pass(ctx);
}
