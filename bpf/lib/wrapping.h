/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads what a balancer has sent a client's packet in (dsr.h), if it is whole: what belongs
 * to no way in which that is done, or says more than there is, is nothing of ours. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "dsr.h"
#include "icmp.h"
#include "packet.h"
#include "parse.h"
#include "strip.h"
#include "tables.h"
#include "workspace.h"

/* Whether what balancers send may be for backends of this node. Set by the loader. */
const volatile __u8 dsr_accept = 0;

/* Whether a packet is a tunnel's, as far as its header says. */
static __always_inline int may_be_tunnel(const struct packet *p)
{
	if (p->fragment)
		return 0;
	if (p->tuple.protocol == IPPROTO_UDP)
		return p->tuple.destination_port == bpf_htons(GENEVE_PORT);
	return p->tuple.protocol == IPPROTO_IPIP || p->tuple.protocol == IPPROTO_IPV6;
}

/* Whether this node opens packets of a kind now: while somebody uses it (package sync). */
static __always_inline int dsr_accepts(enum dsr_accepted kind)
{
	__u32 zero = 0;
	const struct untracked_ends *ends = bpf_map_lookup_elem(&untracked_frontends, &zero);

	return ends && *(const volatile __u32 *)&ends->accepted & kind;
}

/* A look at what has been read of each packet: no more than may be. */
static __always_inline int may_be_wrapped(const struct packet *p, enum parsed parsed)
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

/* RFC 2003, RFC 2473. Reads what is inside into w->quoted, as the others below. */
static __always_inline enum parsed read_ipip(struct context *ctx, struct workspace *w)
{
	const struct packet *p = &w->packet;

	w->wrapping.backend = p->tuple.destination;
	w->wrapping.port = 0;
	w->quoted.l3 = p->l4;
	return parse_from(ctx, &w->quoted, ethertype(p->is_v6));
}

/* One option, ours, and nothing else that the header could say (RFC 8926 section 3.4). What
 * is reserved is to be ignored. */
static __always_inline int is_ours(const struct geneve_v4 *g, int is_v6)
{
	__u8 words = is_v6 ? 5 : 2;

	return g->header.version_length == words + 1 && (g->header.flags & 0xc0) == 0x40 &&
	       g->header.protocol == ethertype(is_v6) && !g->header.network[0] &&
	       !g->header.network[1] && !g->header.network[2] &&
	       g->option.class == bpf_htons(GENEVE_OPTION_CLASS) &&
	       g->option.type == GENEVE_OPTION_BACKEND && (g->option.length & 0x1f) == words;
}

/* RFC 8926. `end` becomes the end of the datagram. */
static __always_inline enum parsed read_geneve(struct context *ctx, struct workspace *w, __u32 *end)
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

	if (!v4 || !is_ours(&v4->geneve, p->is_v6))
		return PARSED_MALFORMED;
	*end = p->l4 + udp_length(ctx, &v4->udp, *end - p->l4);
	w->wrapping.port = v4->geneve.option.port;
	if (!p->is_v6) {
		address_from_v4(&w->wrapping.backend, v4->geneve.backend);
		w->quoted.l3 = p->l4 + sizeof(*v4);
	} else {
		v6 = packet_bytes(ctx, p->l4, sizeof(*v6));
		if (!v6)
			return PARSED_MALFORMED;
		w->wrapping.backend = v6->geneve.backend;
		w->quoted.l3 = p->l4 + sizeof(*v6);
	}
	if (!w->wrapping.port)
		return PARSED_MALFORMED;
	return parse_from(ctx, &w->quoted, ethertype(p->is_v6));
}

static __always_inline int read_option_v4(struct context *ctx, struct workspace *w)
{
	const struct packet *p = &w->packet;
	const struct option_v4 *option =
		packet_bytes(ctx, p->l3 + sizeof(struct iphdr), sizeof(*option));

	if (!option || p->l4 < p->l3 + sizeof(struct iphdr) + sizeof(*option) ||
	    option->type != IPV4_OPTION_FRONTEND || option->length != sizeof(*option))
		return 0;
	address_from_v4(&w->quoted.tuple.destination, option->frontend);
	w->quoted.tuple.destination_port = option->port;
	w->wrapping.length = sizeof(*option);
	return 1;
}

static __always_inline int read_option_v6(struct context *ctx, struct workspace *w)
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
	w->wrapping.next = option->next_header;
	w->wrapping.length = sizeof(*option);
	return !address_is_v4(&w->quoted.tuple.destination);
}

/* The packet itself, of which the option says what it was for. */
static __always_inline enum parsed read_option(struct context *ctx, struct workspace *w,
					       enum parsed parsed)
{
	w->quoted = w->packet;
	if (!(w->packet.is_v6 ? read_option_v6(ctx, w) : read_option_v4(ctx, w)))
		return PARSED_MALFORMED;
	w->wrapping.backend = w->packet.tuple.destination;
	w->wrapping.port = w->packet.tuple.destination_port;
	if (parsed == PARSED_OTHER)
		w->quoted.tuple.destination_port = 0;
	w->quoted.length -= w->wrapping.length;
	return parsed;
}

/* Whether a message is one that tells of a packet. */
static __always_inline int tells(struct context *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = packet_bytes(ctx, p->l4, sizeof(*icmp));

	return is_icmp(p) && !p->fragment && icmp && is_icmp_error(p->tuple.protocol, icmp->type);
}

/* Finds what is inside, whole: how it is wrapped, and w->quoted. */
static __always_inline enum parsed read_wrapping(struct context *ctx, struct workspace *w,
						 enum parsed parsed)
{
	const struct packet *p = &w->packet;
	__u32 end = p->l3 + p->length;
	enum parsed inside;
	__be32 word;

	w->wrapping.outer = p->tuple;
	__builtin_memset(&w->quoted, 0, sizeof(w->quoted));
	if (p->tuple.protocol == (p->is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP) && !p->fragment) {
		w->wrapping.dsr = DSR_IPIP;
		inside = read_ipip(ctx, w);
	} else if (p->tuple.protocol == IPPROTO_UDP && !p->fragment &&
		   p->tuple.destination_port == bpf_htons(GENEVE_PORT)) {
		w->wrapping.dsr = DSR_GENEVE;
		inside = read_geneve(ctx, w, &end);
	} else {
		w->wrapping.dsr = DSR_OPT;
		inside = read_option(ctx, w, parsed);
	}
	if (inside == PARSED_MALFORMED || (inside == PARSED_OTHER && !tells(ctx, &w->quoted)))
		return PARSED_MALFORMED;
	if (end > packet_length(ctx))
		return PARSED_MALFORMED;
	if (w->wrapping.dsr == DSR_OPT)
		return inside;
	if (w->quoted.l3 + w->quoted.length > end || packet_load(ctx, p->l3, &word, sizeof(word)))
		return PARSED_MALFORMED;
	w->wrapping.ecn = ecn_of(word, p->is_v6);
	w->wrapping.length = w->quoted.l3 - p->l3;
	return inside;
}
