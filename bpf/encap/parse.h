/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parses the encapsulation of a packet from a balancer (encap/wire.h). Rejects incomplete packets
 * and other formats. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "encap/decap.h"
#include "encap/wire.h"
#include "icmp/quote.h"
#include "icmp/reply.h"
#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "state/scratch.h"

/* Whether balancers may send packets for backends of this node. Set by the loader. */
const volatile __u8 dsr_accept = 0;

/* Returns whether the outer header may be that of a tunnel. */
static __always_inline int may_be_tunnel(const struct packet *p)
{
	if (p->fragment)
		return 0;
	if (p->tuple.protocol == IPPROTO_UDP)
		return p->tuple.destination_port == bpf_htons(GENEVE_PORT);
	return p->tuple.protocol == IPPROTO_IPIP || p->tuple.protocol == IPPROTO_IPV6;
}

/* Returns whether this node currently decapsulates packets of a kind: only while a Service uses it
 * (package reconcile). */
static __always_inline int dsr_accepts(enum dsr_accepted kind)
{
	__u32 zero = 0;
	const struct untracked_filter *ends = bpf_map_lookup_elem(&untracked_frontends, &zero);

	return ends && *(const volatile __u32 *)&ends->accepted & kind;
}

/* Quick check for every packet: whether it may be encapsulated by a balancer. */
static __always_inline int may_be_encapsulated(const struct packet *p, enum parsed parsed)
{
	__u32 header = p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	if (!dsr_accept || parsed == PARSED_MALFORMED)
		return 0;
	if (may_be_tunnel(p))
		return dsr_accepts(DSR_ACCEPT_TUNNELS);
	return p->l4 > p->l3 + header && dsr_accepts(DSR_ACCEPT_OPTION);
}

static __always_inline __be16 ethertype(int is_v6)
{
	return is_v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
}

/* Parses IPIP (RFC 2003, RFC 2473). Like the functions below, parses the inner packet into
 * w->quoted. */
static __always_inline enum parsed parse_ipip(struct context *ctx, struct scratch *w)
{
	const struct packet *p = &w->packet;

	w->decap.backend = p->tuple.destination;
	w->decap.port = 0;
	w->quoted.l3 = p->l4;
	return parse_from(ctx, &w->quoted, ethertype(p->is_v6));
}

/* Returns whether the Geneve header has Beeline's option, and no other one (RFC 8926 section 3.4).
 * Reserved fields are ignored. */
static __always_inline int is_dsr_geneve(const struct geneve_v4 *g, int is_v6)
{
	__u8 words = is_v6 ? 5 : 2;

	return g->header.version_length == words + 1 && (g->header.flags & 0xc0) == 0x40 &&
	       g->header.protocol == ethertype(is_v6) && !g->header.network[0] &&
	       !g->header.network[1] && !g->header.network[2] &&
	       g->option.class == bpf_htons(GENEVE_OPTION_CLASS) &&
	       g->option.type == GENEVE_OPTION_BACKEND && (g->option.length & 0x1f) == words;
}

/* Parses Geneve (RFC 8926). Sets *end to the end of the datagram. */
static __always_inline enum parsed parse_geneve(struct context *ctx, struct scratch *w, __u32 *end)
{
	const struct packet *p = &w->packet;
	const struct {
		struct udphdr udp;
		struct geneve_v4 geneve;
	} *v4 = packet_bytes(ctx, p->l4, sizeof(*v4));
	const struct {
		struct udphdr udp;
		struct geneve_v6 geneve;
	} *v6;

	if (!v4 || !is_dsr_geneve(&v4->geneve, p->is_v6))
		return PARSED_MALFORMED;
	*end = p->l4 + udp_length(ctx, &v4->udp, *end - p->l4);
	w->decap.port = v4->geneve.option.port;
	if (!p->is_v6) {
		address_from_v4(&w->decap.backend, v4->geneve.backend);
		w->quoted.l3 = p->l4 + sizeof(*v4);
	} else {
		v6 = packet_bytes(ctx, p->l4, sizeof(*v6));
		if (!v6)
			return PARSED_MALFORMED;
		w->decap.backend = v6->geneve.backend;
		w->quoted.l3 = p->l4 + sizeof(*v6);
	}
	if (!w->decap.port)
		return PARSED_MALFORMED;
	return parse_from(ctx, &w->quoted, ethertype(p->is_v6));
}

static __always_inline int parse_option_v4(struct context *ctx, struct scratch *w)
{
	const struct packet *p = &w->packet;
	const struct option_v4 *option =
		packet_bytes(ctx, p->l3 + sizeof(struct iphdr), sizeof(*option));

	if (!option || p->l4 < p->l3 + sizeof(struct iphdr) + sizeof(*option) ||
	    option->type != IPV4_OPTION_FRONTEND || option->length != sizeof(*option))
		return 0;
	address_from_v4(&w->quoted.tuple.destination, option->frontend);
	w->quoted.tuple.destination_port = option->port;
	w->decap.length = sizeof(*option);
	return 1;
}

static __always_inline int parse_option_v6(struct context *ctx, struct scratch *w)
{
	const struct {
		struct ipv6hdr ip;
		struct option_v6 option;
	} *at = packet_bytes(ctx, w->packet.l3, sizeof(*at));
	const struct option_v6 *option;

	if (!at || at->ip.nexthdr != IPPROTO_DSTOPTS)
		return 0;
	option = &at->option;
	if (option->header_length != 2 || option->type != IPV6_OPTION_FRONTEND ||
	    option->length != sizeof(option->port) + sizeof(option->frontend) ||
	    option->pad_type != IPV6_OPTION_PADN || option->pad_length)
		return 0;
	w->quoted.tuple.destination = option->frontend;
	w->quoted.tuple.destination_port = option->port;
	w->decap.next = option->next_header;
	w->decap.length = sizeof(*option);
	return !address_is_v4(&w->quoted.tuple.destination);
}

/* Parses the option of a packet that is not in a tunnel. The inner packet is the packet itself with
 * its original destination. */
static __always_inline enum parsed parse_option(struct context *ctx, struct scratch *w,
						enum parsed parsed)
{
	w->quoted = w->packet;
	if (!(w->packet.is_v6 ? parse_option_v6(ctx, w) : parse_option_v4(ctx, w)))
		return PARSED_MALFORMED;
	w->decap.backend = w->packet.tuple.destination;
	w->decap.port = w->packet.tuple.destination_port;
	if (parsed == PARSED_OTHER)
		w->quoted.tuple.destination_port = 0;
	w->quoted.length -= w->decap.length;
	return parsed;
}

/* Returns whether a message is a complete ICMP error. */
static __always_inline int is_whole_icmp_error(struct context *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = packet_bytes(ctx, p->l4, sizeof(*icmp));

	return is_icmp(p) && !p->fragment && icmp && is_icmp_error(p->tuple.protocol, icmp->type);
}

/* Parses the encapsulation into w->decap and the inner packet, which must be complete, into
 * w->quoted. */
static __always_inline enum parsed parse_encapsulation(struct context *ctx, struct scratch *w,
						       enum parsed parsed)
{
	const struct packet *p = &w->packet;
	__u32 end = p->l3 + p->length;
	enum parsed inside;
	__be32 word;

	w->decap.outer = p->tuple;
	__builtin_memset(&w->quoted, 0, sizeof(w->quoted));
	if (p->tuple.protocol == (p->is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP) && !p->fragment) {
		w->decap.dsr = DSR_IPIP;
		inside = parse_ipip(ctx, w);
	} else if (p->tuple.protocol == IPPROTO_UDP && !p->fragment &&
		   p->tuple.destination_port == bpf_htons(GENEVE_PORT)) {
		w->decap.dsr = DSR_GENEVE;
		inside = parse_geneve(ctx, w, &end);
	} else {
		w->decap.dsr = DSR_OPT;
		inside = parse_option(ctx, w, parsed);
	}
	if (inside == PARSED_MALFORMED ||
	    (inside == PARSED_OTHER && !is_whole_icmp_error(ctx, &w->quoted)))
		return PARSED_MALFORMED;
	if (end > packet_length(ctx))
		return PARSED_MALFORMED;
	if (w->decap.dsr == DSR_OPT)
		return inside;
	if (w->quoted.l3 + w->quoted.length > end || packet_load(ctx, p->l3, &word, sizeof(word)))
		return PARSED_MALFORMED;
	w->decap.ecn = ecn_of(word, p->is_v6);
	w->decap.length = w->quoted.l3 - p->l3;
	return inside;
}
