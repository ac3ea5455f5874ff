/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets of protocols that no Service has (R21): all except TCP, UDP and SCTP. A ClusterIP rejects
 * them; an unused address of a ServiceCIDR drops them. ICMP errors and neighbour discovery are
 * passed: they request nothing, and an error may be about a flow. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge/select.h"
#include "filter/prefilter.h"
#include "filter/source_class.h"
#include "icmp/message_sum.h"
#include "icmp/quote.h"
#include "icmp/reply.h"
#include "lb/address.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* RFC 4861 section 4: from router solicitation to redirect. */
#define ND_FIRST       133
#define ND_LAST	       137

/* The minimum that an ICMP error quotes: an IPv4 header and 8 octets (RFC 792). */
#define SHORTEST_QUOTE 28

/* Returns whether a packet is an ICMP message that requests nothing. Later fragments are not. */
static __always_inline int needs_no_reply(struct context *ctx, const struct packet *p)
{
	const struct icmp_header *icmp;

	if (!is_icmp(p) || p->fragment == FRAGMENT_LATER)
		return 0;
	icmp = packet_bytes(ctx, p->l4, sizeof(*icmp));
	if (!icmp || is_icmp_error(p->tuple.protocol, icmp->type))
		return 1;
	return p->is_v6 && icmp->type >= ND_FIRST && icmp->type <= ND_LAST;
}

/* Returns whether the protocol of an IPv6 packet is unknown, because the parser (packet/parse.h)
 * has stopped at an extension header: too many headers, or an unsupported length. */
static __always_inline int hides_protocol(const struct packet *p)
{
	if (!p->is_v6)
		return 0;
	switch (p->tuple.protocol) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_DSTOPTS:
		return 1;
	default:
		return 0;
	}
}

/* Returns whether a packet is IP of a protocol without ports, to an address that a Service may
 * have. */
static __always_inline int may_be_for_service(const struct packet *p)
{
	return p->l4 && !has_ports(p->tuple.protocol) && !hides_protocol(p) &&
	       prefilter_may_match(&p->tuple.destination, 0);
}

/* Rejects or drops a packet of another protocol to a Service; ACTION_CONTINUE for other packets.
 * `class` is SOURCE_CLASSES if the source address determines it. Global function: the verifier
 * checks it once. */
__noinline enum action other_protocol(struct context *ctx, enum source_class class)
{
	struct scratch *w = scratch_get();
	const struct decision *decision;
	struct frontend_key asked = {};
	struct frontend *frontend;
	struct packet *p;

	if (!w)
		return ACTION_CONTINUE;
	p = &w->packet;
	asked.address = p->tuple.destination;
	frontend = frontend_at(&asked);
	if (!frontend && !in_service_network(&p->tuple.destination))
		return ACTION_CONTINUE;
	if (address_is_loopback(&asked.address) || needs_no_reply(ctx, p))
		return ACTION_CONTINUE;
	if (address_is_no_source(&p->tuple.source) || p->l4 > p->l3 + p->length ||
	    !packet_reaches(ctx, p->l3 + p->length) ||
	    (is_icmp(p) && !p->fragment && !icmp_sum_is_right(ctx)))
		return pass(ctx, EDGE_MALFORMED);
	if (!frontend)
		return drop(ctx, EDGE_DROP_NO_SERVICE);
	if (class == SOURCE_CLASSES)
		class = class_of(&p->tuple.source);
	w->in.service = frontend->service;
	if (dry_run)
		explain_choice(frontend, class);
	if (class == FROM_POD)
		decision = &frontend->decisions[FROM_POD];
	else if (class == FROM_NODE)
		decision = &frontend->decisions[FROM_NODE];
	else
		decision = &frontend->decisions[FROM_OUTSIDE];
	if (decision->count)
		return ACTION_CONTINUE;
	if (decision->verdict == VERDICT_REJECT && p->length < SHORTEST_QUOTE)
		return drop(ctx, EDGE_REJECTED);
	return apply_verdict(ctx, decision->verdict);
}
