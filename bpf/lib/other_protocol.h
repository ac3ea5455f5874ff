/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets of protocols that no Service has (R21): all but TCP, UDP and SCTP. A ClusterIP refuses
 * them, and an unused address of a ServiceCIDR drops them. ICMP errors and messages of neighbour
 * discovery are left alone: they ask for nothing, and a flow may be what an error is about. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "choose.h"
#include "door.h"
#include "frontend.h"
#include "icmp.h"
#include "packet.h"
#include "tables.h"
#include "tell.h"
#include "workspace.h"

/* RFC 4861 section 4: router solicitation to redirect. */
#define ND_FIRST       133
#define ND_LAST	       137

/* An ICMP error quotes so much at least: an IPv4 header and 8 octets (RFC 792). */
#define SHORTEST_QUOTE 28

/* Whether a packet is an ICMP message that asks for nothing. The rest of a datagram is not. */
static __always_inline int asks_nothing(struct context *ctx, const struct packet *p)
{
	const struct icmp_header *icmp;

	if (!is_icmp(p) || p->fragment == FRAGMENT_LATER)
		return 0;
	icmp = packet_bytes(ctx, p->l4, sizeof(*icmp));
	if (!icmp || is_icmp_error(p->tuple.protocol, icmp->type))
		return 1;
	return p->is_v6 && icmp->type >= ND_FIRST && icmp->type <= ND_LAST;
}

/* Whether the headers of IPv6 have been passed over as far as one that hides the protocol: there
 * are more of them than are read (parse.h), it has a length that is not read, or segments left, and
 * so is on its way to somebody else. */
static __always_inline int hides_protocol(const struct packet *p)
{
	if (!p->is_v6)
		return 0;
	switch (p->tuple.protocol) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_AH:
	case IPPROTO_DSTOPTS:
		return 1;
	default:
		return 0;
	}
}

/* Whether a packet is one of IP and of a protocol without ports, to an address that may be one of
 * Services. */
static __always_inline int may_ask_services(const struct packet *p)
{
	return p->l4 && !has_ports(p->tuple.protocol) && !hides_protocol(p) &&
	       door_may_have(&p->tuple.destination);
}

/* Refuses or drops a packet that may ask Services, if it does. Returns whether it was one: then
 * `result` is what becomes of it. `class` is SOURCE_CLASSES if the source address tells it. Not
 * static: the verifier looks at it once. */
__noinline int other_protocol(struct context *ctx, enum source_class class, int *result)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	const struct decision *decision;
	struct frontend_key asked = {};
	struct frontend *frontend;
	struct packet *p;

	if (!w || !result)
		return 0;
	p = &w->packet;
	asked.address = p->tuple.destination;
	frontend = frontend_at(&asked);
	if (!frontend && !in_service_network(&p->tuple.destination))
		return 0;
	if (address_is_loopback(&asked.address) || asks_nothing(ctx, p))
		return 0;
	if (address_is_no_source(&p->tuple.source) || p->l4 > p->l3 + p->length ||
	    !packet_reaches(ctx, p->l3 + p->length)) {
		*result = leave_alone(ctx, EDGE_DROP_MALFORMED);
		return 1;
	}
	if (!frontend) {
		*result = lose(ctx, w, EDGE_DROP_UNUSED);
		return 1;
	}
	if (class == SOURCE_CLASSES)
		class = class_of(&p->tuple.source);
	w->service = frontend->service;
	if (dry_run)
		explain_choice(frontend, class);
	if (class == FROM_POD)
		decision = &frontend->decisions[FROM_POD];
	else if (class == FROM_NODE)
		decision = &frontend->decisions[FROM_NODE];
	else
		decision = &frontend->decisions[FROM_OUTSIDE];
	if (decision->count)
		return 0;
	if (decision->verdict == VERDICT_REJECT && p->length < SHORTEST_QUOTE)
		*result = lose(ctx, w, EDGE_REJECTED);
	else
		*result = judge(ctx, w, decision->verdict);
	return 1;
}
