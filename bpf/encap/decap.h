/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Decapsulates a packet from a balancer (encap/wire.h). This is the last step: until then the
 * packet may still be passed, and stays unchanged. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "encap/wire.h"
#include "icmp/reply.h"
#include "lb/types.h"
#include "packet/csum.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "state/scratch.h"

enum ecn {
	ECN_NOT_CAPABLE,
	ECN_CAPABLE_1,
	ECN_CAPABLE_0,
	ECN_EXPERIENCED,
	ECN_MASK = 3,
};

enum decap_result {
	DECAP_DONE,	  /* the packet has the tuple that the client sent */
	DECAP_TRANSLATED, /* the packet is already translated to the backend */
	DECAP_FAILED,	  /* the packet may be partly changed */
};

/* Returns the ECN field for the inner header (RFC 6040 section 4.2). */
static __always_inline __u8 ecn_inside(__u8 inner, __u8 outer)
{
	if (inner == ECN_NOT_CAPABLE || inner == ECN_EXPERIENCED)
		return inner;
	if (outer == ECN_EXPERIENCED || (inner == ECN_CAPABLE_0 && outer == ECN_CAPABLE_1))
		return outer;
	return inner;
}

/* Returns the ECN field from the first word of an IP header. */
static __always_inline __u8 ecn_of(__be32 word, int is_v6)
{
	return bpf_ntohl(word) >> (is_v6 ? 20 : 16) & ECN_MASK;
}

/* Replaces the first word of an IPv4 header. Updates the checksum by that and by the difference
 * `less`. */
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

/* Copies congestion marks of the outer header to the inner header. */
static __always_inline int keep_ecn(struct context *ctx, const struct scratch *w)
{
	const struct packet *p = &w->packet;
	__be32 before, after;
	__u8 inner, joined;

	if (packet_load(ctx, p->l3, &before, sizeof(before)))
		return -1;
	inner = ecn_of(before, p->is_v6);
	joined = ecn_inside(inner, w->decap.ecn);
	if (joined == inner)
		return 0;
	after = before ^ bpf_htonl((__u32)(inner ^ joined) << (p->is_v6 ? 20 : 16));
	if (p->is_v6)
		return packet_put(ctx, p->l3, &after, sizeof(after));
	return rewrite_v4(ctx, p->l3, before, after, 0);
}

/* Removes the first option of an IPv4 header. A wrong header checksum stays wrong. */
static __always_inline int decap_strip_option_v4(struct context *ctx, const struct packet *p)
{
	__be32 none[2] = {}, option[2], before, after;

	if (packet_load(ctx, p->l3, &before, sizeof(before)) ||
	    packet_load(ctx, p->l3 + sizeof(struct iphdr), option, sizeof(option)) ||
	    packet_cut(ctx, LINK_HEADER + sizeof(struct iphdr), sizeof(option)))
		return -1;
	/* The header length in words is the low nibble of the first byte. Merged packets may have a
	 * total length of 0. */
	after = bpf_htonl(bpf_ntohl(before) - (2u << 24) -
			  (bpf_ntohl(before) & 0xffff ? (__u32)sizeof(option) : 0));
	return rewrite_v4(ctx, p->l3, before, after, checksum_difference(option, none, 2, 0));
}

/* Removes the destination options header right after the IPv6 header. */
static __always_inline int decap_strip_option_v6(struct context *ctx, const struct scratch *w)
{
	__u32 at = w->packet.l3 + offsetof(struct ipv6hdr, payload_len);
	struct {
		__be16 length;
		__u8 next;
		__u8 hops;
	} rest;

	if (packet_load(ctx, at, &rest, sizeof(rest)) ||
	    packet_cut(ctx, LINK_HEADER + sizeof(struct ipv6hdr), sizeof(struct option_v6)))
		return -1;
	if (rest.length)
		rest.length = bpf_htons(bpf_ntohs(rest.length) - sizeof(struct option_v6));
	rest.next = w->decap.next;
	return packet_put(ctx, at, &rest, sizeof(rest));
}

/* Updates the checksum of ICMPv6, which covers the addresses: the code that translates the message
 * expects the checksum for the addresses with which it was sent. */
static __always_inline int icmpv6_fix_checksum(struct context *ctx, const struct scratch *w)
{
	return packet_checksum(
		ctx, w->packet.l4 + offsetof(struct icmp_header, checksum),
		checksum_difference(&w->decap.outer.source, &w->packet.tuple.source, 8, 0));
}

/* Removes the option. The packet is already translated by the balancer, nearly always to its final
 * backend. */
static __always_inline enum decap_result decap_strip_option(struct context *ctx, struct scratch *w)
{
	struct packet *p = &w->packet;

	if (p->is_v6 ? decap_strip_option_v6(ctx, w) : decap_strip_option_v4(ctx, p))
		return DECAP_FAILED;
	p->l4 -= w->decap.length;
	if (p->tuple.protocol == IPPROTO_ICMPV6 && icmpv6_fix_checksum(ctx, w))
		return DECAP_FAILED;
	if (tuple_equal(&w->decap.outer, &w->out.to))
		return DECAP_TRANSLATED;
	w->quoted = *p;
	w->quoted.tuple = w->decap.outer;
	return packet_translate(ctx, &w->quoted, &w->out.to, 0) ? DECAP_FAILED : DECAP_TRANSLATED;
}

/* Decapsulates the packet of w->decap. Returns enum decap_result. Global function: the verifier
 * checks it once. */
__noinline int decap_strip(struct context *ctx)
{
	struct scratch *w = scratch_get();

	if (!w)
		return DECAP_FAILED;
	if (w->decap.dsr == DSR_OPT)
		return decap_strip_option(ctx, w);
	if (keep_ecn(ctx, w) || packet_cut(ctx, LINK_HEADER, w->decap.length))
		return DECAP_FAILED;
	w->packet.l3 -= w->decap.length;
	w->packet.l4 -= w->decap.length;
	return DECAP_DONE;
}
