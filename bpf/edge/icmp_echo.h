/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP echo (RFC 792, RFC 4443 section 4). No stack replies for an address that only Services have;
 * a separate frontend marks addresses that reply. No state is kept, and each request has one reply
 * of equal length: a flood costs less than one of rejected connections, and needs no rate limit. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "filter/source_class.h"
#include "icmp/message_sum.h"
#include "icmp/packet_sum.h"
#include "icmp/reply.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "route/fib.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

#define ICMP_ECHO_REQUEST   8
#define ICMP_ECHO_REPLY	    0
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY   129

/* Corrects the reply's checksum if the difference does not determine it. A sum of words is zero in
 * two representations (RFC 1071): 0xffff for words that are not all zero, and 0 for zeros. Only an
 * ICMP reply can be all zeros: ICMPv6's type is not 0. */
static __always_inline int icmp_echo_fix_checksum(struct context *ctx, const struct packet *p)
{
	__u32 at = p->l4 + offsetof(struct icmp_header, checksum), left;
	__sum16 check;
	__s64 sum;

	if (p->is_v6)
		return 0;
	if (packet_load(ctx, at, &check, sizeof(check)))
		return -1;
	if (check)
		return 0;
	left = p->l3 + p->length - at - sizeof(check);
	sum = packet_sum(ctx, at + sizeof(check), left);
	if (sum)
		return sum < 0 ? -1 : 0;
	check = 0xffff;
	return packet_store(ctx, at, &check, sizeof(check));
}

/* Turns a request into its reply. On error the packet may be partly changed. */
static __always_inline int icmp_echo_reply(struct context *ctx, struct scratch *w)
{
	struct packet *p = &w->packet;
	__be16 asks = bpf_htons(p->is_v6 ? ICMPV6_ECHO_REQUEST << 8 : ICMP_ECHO_REQUEST << 8);
	__be16 says = bpf_htons(p->is_v6 ? ICMPV6_ECHO_REPLY << 8 : ICMP_ECHO_REPLY << 8);
	struct ethhdr eth;

	if (link_header_reversed(ctx, &eth))
		return -1;
	tuple_reverse(&p->tuple, &w->out.to);
	p->fragment = FRAGMENT_LATER; /* no ports to rewrite */
	/* Swapping the addresses does not change the checksum. */
	return packet_translate(ctx, p, &w->out.to, p->hops - REPLY_TTL) ||
	       link_header_store(ctx, &eth) || packet_store(ctx, p->l4, &says, sizeof(says)) ||
	       packet_checksum(ctx, p->l4 + offsetof(struct icmp_header, checksum),
			       (__u16)~asks + says) ||
	       icmp_echo_fix_checksum(ctx, p);
}

/* Returns EDGE_ECHO if the client gets a reply, or else the reason why not. */
static __always_inline enum edge_reason
icmp_echo_verdict(struct scratch *w, const struct frontend *frontend, enum source_class class)
{
	const struct decision *decision;

	if (class == SOURCE_CLASSES)
		class = class_of(&w->packet.tuple.source);

	if (dry_run)
		explain_choice(frontend, class);
	if (frontend->source_set && !source_admitted(frontend->source_set, &w->packet.tuple.source))
		return EDGE_DROP_SOURCE;
	decision = class == FROM_POD ? &frontend->decisions[FROM_POD]
				     : &frontend->decisions[FROM_OUTSIDE];
	return !decision->count && decision->verdict == VERDICT_ANSWER ? EDGE_ECHO
								       : EDGE_NOT_SERVICE;
}

/* Replies to an echo request to a Service's address; ACTION_CONTINUE for other packets. `class` is
 * SOURCE_CLASSES if the source address determines it, and never FROM_NODE: the node's own requests
 * go to the network. Global function: the verifier checks it once, and not for each path through
 * the headers. */
__noinline enum action icmp_echo(struct context *ctx, enum source_class class)
{
	struct scratch *w = scratch_get();
	struct packet *p = w ? &w->packet : 0;
	struct frontend_key asked = {};
	struct frontend *frontend;
	struct icmp_header icmp;
	enum edge_reason reason;

	if (!p)
		return ACTION_CONTINUE;
	asked.address = p->tuple.destination;
	asked.protocol = p->tuple.protocol;
	frontend = frontend_at(&asked);
	if (!frontend)
		return ACTION_CONTINUE;
	w->in.service = frontend->service;
	/* The stack would hold the fragments until they expire: it does not have the address. */
	if (p->fragment == FRAGMENT_LATER)
		return drop(ctx, EDGE_DROP_FRAGMENT);
	if (packet_load(ctx, p->l4, &icmp, sizeof(icmp)) ||
	    p->l3 + p->length > packet_length(ctx) || p->l4 + sizeof(icmp) > p->l3 + p->length)
		return pass(ctx, EDGE_MALFORMED);
	if (icmp.code || icmp.type != (p->is_v6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST))
		return ACTION_CONTINUE;
	if (!p->fragment && !icmp_sum_is_right(ctx))
		return pass(ctx, EDGE_MALFORMED);
	reason = p->fragment ? EDGE_DROP_FRAGMENT : icmp_echo_verdict(w, frontend, class);
	/* Options may request more than a reply (RFC 1122 section 3.2.2.6). */
	if (reason == EDGE_ECHO &&
	    p->l4 - p->l3 != (p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
		return ACTION_CONTINUE;
	if (reason == EDGE_NOT_SERVICE)
		return ACTION_CONTINUE;
	if (reason == EDGE_ECHO && sender_is_forbidden(ctx))
		reason = EDGE_DROP_NO_ROUTE;
	if (reason == EDGE_ECHO && icmp_echo_reply(ctx, w))
		reason = EDGE_DROP_REWRITE_FAILED;
	if (reason != EDGE_ECHO)
		return drop(ctx, reason);
	edge_count(EDGE_ECHO);
	return w->in.egress ? packet_redirect_ingress(ctx) : packet_bounce(ctx);
}
