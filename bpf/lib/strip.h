/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Takes from a packet what a balancer has sent it here in (dsr.h). It is done last of all:
 * until there is nothing left that could leave the packet to others, it is as it has come. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "dsr.h"
#include "checksum.h"
#include "packet.h"
#include "tuple.h"
#include "workspace.h"

enum ecn {
	ECN_NOT_CAPABLE,
	ECN_CAPABLE_1,
	ECN_CAPABLE_0,
	ECN_EXPERIENCED,
	ECN_MASK = 3,
};

enum stripped {
	STRIPPED,	 /* its ends are those that the client gave it */
	STRIPPED_TO_END, /* its ends are those that it is to have */
	STRIP_FAILED,	 /* it may be half changed */
};

/* What the header inside is to say of congestion (RFC 6040 section 4.2). */
static __always_inline __u8 ecn_inside(__u8 inner, __u8 outer)
{
	if (inner == ECN_NOT_CAPABLE || inner == ECN_EXPERIENCED)
		return inner;
	if (outer == ECN_EXPERIENCED || (inner == ECN_CAPABLE_0 && outer == ECN_CAPABLE_1))
		return outer;
	return inner;
}

/* The first word of an IP header has the ECN field. */
static __always_inline __u8 ecn_of(__be32 word, int is_v6)
{
	return bpf_ntohl(word) >> (is_v6 ? 20 : 16) & ECN_MASK;
}

/* Writes another first word of an IPv4 header, and a checksum that makes up for that and for
 * `less`, a difference. */
static __always_inline int rewrite_v4(struct context *ctx, __u32 l3, __be32 before, __be32 after,
				      __u32 less)
{
	struct iphdr ip;

	if (packet_load(ctx, l3, &ip, sizeof(ip)))
		return -1;
	__builtin_memcpy(&ip, &after, sizeof(after));
	ip.check = checksum_plus(ip.check, checksum_difference(&before, &after, 1, less));
	return packet_put(ctx, l3, &ip, sizeof(ip));
}

/* Keeps what routers have noted in the outer header. */
static __always_inline int keep_ecn(struct context *ctx, const struct workspace *w)
{
	const struct packet *p = &w->packet;
	__be32 before, after;
	__u8 inner, joined;

	if (packet_load(ctx, p->l3, &before, sizeof(before)))
		return -1;
	inner = ecn_of(before, p->is_v6);
	joined = ecn_inside(inner, w->wrapping.ecn);
	if (joined == inner)
		return 0;
	after = before ^ bpf_htonl((__u32)(inner ^ joined) << (p->is_v6 ? 20 : 16));
	if (p->is_v6)
		return packet_put(ctx, p->l3, &after, sizeof(after));
	return rewrite_v4(ctx, p->l3, before, after, 0);
}

/* Takes the option away that is the first of an IPv4 header. Its checksum stays as wrong as
 * it is. */
static __always_inline int strip_option_v4(struct context *ctx, const struct packet *p)
{
	__be32 none[2] = {}, option[2], before, after;

	if (packet_load(ctx, p->l3, &before, sizeof(before)) ||
	    packet_load(ctx, p->l3 + sizeof(struct iphdr), option, sizeof(option)) ||
	    packet_cut(ctx, sizeof(struct ethhdr) + sizeof(struct iphdr), sizeof(option)))
		return -1;
	/* The header's length is in its second four bits, in words. A packet of merged ones
	 * may have no length of its own. */
	after = bpf_htonl(bpf_ntohl(before) - (2u << 24) -
			  (bpf_ntohl(before) & 0xffff ? (__u32)sizeof(option) : 0));
	return rewrite_v4(ctx, p->l3, before, after, checksum_difference(option, none, 2, 0));
}

/* Takes the destination options header away that is right behind an IPv6 header. */
static __always_inline int strip_option_v6(struct context *ctx, const struct workspace *w)
{
	__u32 at = w->packet.l3 + offsetof(struct ipv6hdr, payload_len);
	struct {
		__be16 length;
		__u8 next;
		__u8 hops;
	} rest;

	if (packet_load(ctx, at, &rest, sizeof(rest)) ||
	    packet_cut(ctx, sizeof(struct ethhdr) + sizeof(struct ipv6hdr),
		       sizeof(struct option_v6)))
		return -1;
	if (rest.length)
		rest.length = bpf_htons(bpf_ntohs(rest.length) - sizeof(struct option_v6));
	rest.next = w->wrapping.next;
	return packet_put(ctx, at, &rest, sizeof(rest));
}

/* The checksum of ICMPv6 knows the packet's ends: whoever translates the message takes them
 * for those that it has been sent with. */
static __always_inline int ask_icmp(struct context *ctx, const struct workspace *w)
{
	return packet_checksum(
		ctx, w->packet.l4 + offsetof(struct icmp_header, checksum),
		checksum_difference(&w->wrapping.outer.source, &w->packet.tuple.source, 8, 0));
}

/* A packet that bears an option is translated already, and nearly always to the backend that
 * it is for. */
static __always_inline enum stripped strip_option(struct context *ctx, struct workspace *w)
{
	struct packet *p = &w->packet;

	if (p->is_v6 ? strip_option_v6(ctx, w) : strip_option_v4(ctx, p))
		return STRIP_FAILED;
	p->l4 -= w->wrapping.length;
	if (p->tuple.protocol == IPPROTO_ICMPV6 && ask_icmp(ctx, w))
		return STRIP_FAILED;
	if (tuple_equal(&w->wrapping.outer, &w->to))
		return STRIPPED_TO_END;
	w->quoted = *p;
	w->quoted.tuple = w->wrapping.outer;
	return packet_translate(ctx, &w->quoted, &w->to, 0) ? STRIP_FAILED : STRIPPED_TO_END;
}

/* Not static: the verifier looks at it once. */
__noinline int strip(struct context *ctx)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);

	if (!w)
		return STRIP_FAILED;
	if (w->wrapping.dsr == DSR_OPT)
		return strip_option(ctx, w);
	if (keep_ecn(ctx, w) || packet_cut(ctx, sizeof(struct ethhdr), w->wrapping.length))
		return STRIP_FAILED;
	w->packet.l3 -= w->wrapping.length;
	w->packet.l4 -= w->wrapping.length;
	return STRIPPED;
}
