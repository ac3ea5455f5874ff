/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP echo (RFC 792, RFC 4443 section 4). An address that is nobody's but Services' has
 * no stack that answers; a frontend of its own says that they serve there. Nothing is
 * kept, and each request has one reply that is as long: a flood costs less than one of
 * connections that are refused, and bears no bound of its own. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "forward.h"
#include "frontend.h"
#include "icmp.h"
#include "packet.h"
#include "packet_sum.h"
#include "tell.h"

#define ICMP_ECHO_REQUEST   8
#define ICMP_ECHO_REPLY	    0
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY   129

/* Corrects the reply's checksum where the difference alone does not tell it. The sum of words is
 * zero in two ways (RFC 1071): 0xffff of words that are not all zero, and 0 of zeros. Only an ICMP
 * reply can be all zeros: ICMPv6 has a type that is not 0. */
static __always_inline int echo_settle(struct context *ctx, const struct packet *p)
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

/* Turns a request into its reply; what its checksum does not bear out, that of the reply
 * does not. On error it may be half changed. */
static __always_inline int echo_turn(struct context *ctx, struct workspace *w)
{
	struct packet *p = &w->packet;
	__be16 asks = bpf_htons(p->is_v6 ? ICMPV6_ECHO_REQUEST << 8 : ICMP_ECHO_REQUEST << 8);
	__be16 says = bpf_htons(p->is_v6 ? ICMPV6_ECHO_REPLY << 8 : ICMP_ECHO_REPLY << 8);
	struct ethhdr eth;
	__u8 mac[ETH_ALEN];

	if (packet_load(ctx, 0, &eth, sizeof(eth)))
		return -1;
	__builtin_memcpy(mac, eth.h_dest, ETH_ALEN);
	__builtin_memcpy(eth.h_dest, eth.h_source, ETH_ALEN);
	__builtin_memcpy(eth.h_source, mac, ETH_ALEN);
	tuple_reverse(&p->tuple, &w->to);
	p->fragment = FRAGMENT_LATER; /* the ends have no ports */
	/* The ends change places, of which the checksum knows nothing. */
	return packet_translate(ctx, p, &w->to, p->hops - ANSWER_HOPS) ||
	       packet_store(ctx, 0, &eth, sizeof(eth)) ||
	       packet_store(ctx, p->l4, &says, sizeof(says)) ||
	       packet_checksum(ctx, p->l4 + offsetof(struct icmp_header, checksum),
			       (__u16)~asks + says) ||
	       echo_settle(ctx, p);
}

/* Whether somebody is admitted, and meets an answer. */
static __always_inline enum edge_reason
echo_judge(struct workspace *w, const struct frontend *frontend, enum source_class class)
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
	return !decision->count && decision->verdict == VERDICT_ANSWER ? EDGE_ECHO : EDGE_NOT_OURS;
}

/* Answers an echo request to a Service's address. Returns whether the packet was one: then
 * `result` is what becomes of it. `class` is SOURCE_CLASSES if the source address tells it, and
 * never FROM_NODE: the node itself asks the network. Not static: the verifier looks at it once, and
 * not for each way that leads through the headers to it. */
__noinline int echo(struct context *ctx, enum source_class class, int *result)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	struct packet *p = w ? &w->packet : 0;
	struct frontend_key asked = {};
	struct frontend *frontend;
	struct icmp_header icmp;
	enum edge_reason reason;

	if (!p || !result)
		return 0;
	asked.address = p->tuple.destination;
	asked.protocol = p->tuple.protocol;
	frontend = frontend_at(&asked);
	if (!frontend)
		return 0;
	w->service = frontend->service;
	/* The stack would keep the pieces in vain: it has no such address. */
	if (p->fragment == FRAGMENT_LATER) {
		*result = lose(ctx, w, EDGE_DROP_FRAGMENT);
		return 1;
	}
	if (packet_load(ctx, p->l4, &icmp, sizeof(icmp)) ||
	    p->l3 + p->length > packet_length(ctx) || p->l4 + sizeof(icmp) > p->l3 + p->length) {
		*result = leave_alone(ctx, EDGE_DROP_MALFORMED);
		return 1;
	}
	if (icmp.code || icmp.type != (p->is_v6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST))
		return 0;
	reason = p->fragment ? EDGE_DROP_FRAGMENT : echo_judge(w, frontend, class);
	/* Options may ask for more than an answer (RFC 1122 section 3.2.2.6). */
	if (reason == EDGE_ECHO &&
	    p->l4 - p->l3 != (p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
		return 0;
	if (reason == EDGE_NOT_OURS)
		return 0;
	if (reason == EDGE_ECHO && echo_turn(ctx, w))
		reason = EDGE_DROP_FAULT;
	if (reason != EDGE_ECHO) {
		*result = lose(ctx, w, reason);
		return 1;
	}
	edge_count(EDGE_ECHO);
	*result = w->leaving ? packet_return(ctx) : packet_bounce(ctx);
	return 1;
}
