/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Encapsulates packets to a backend on another node, with the client's address (DSR; encap/wire.h
 * describes the formats). Inputs in the scratch area: `to` has the client and the backend, `dsr`
 * the format, `outer` the outer addresses and ports.
 *
 * The outer header copies the traffic class with ECN, and the IPv6 flow label (RFC 6040 section
 * 4.1, RFC 6438). It has no identification, because the packet is never fragmented (RFC 6864). The
 * TTL of the inner packet is decremented by this node. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "encap/wire.h"
#include "lb/address.h"
#include "lb/types.h"
#include "packet/csum.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "state/scratch.h"

_Static_assert(sizeof(((struct scratch *)0)->encap.headroom) >=
		       sizeof(struct ipv6hdr) + sizeof(struct udphdr) + sizeof(struct geneve_v6),
	       "room for the longest");

struct outer_geneve_v4 {
	struct iphdr ip;
	struct udphdr udp;
	struct geneve_v4 geneve;
};

struct outer_geneve_v6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	struct geneve_v6 geneve;
};

/* Returns by how many bytes a packet grows. */
static __always_inline __u32 dsr_overhead(__u32 dsr, int is_v6)
{
	switch (dsr) {
	case DSR_IPIP:
		return is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	case DSR_GENEVE:
		return is_v6 ? sizeof(struct outer_geneve_v6) : sizeof(struct outer_geneve_v4);
	case DSR_OPT:
		return is_v6 ? sizeof(struct option_v6) : sizeof(struct option_v4);
	}
	return 0;
}

/* Sets the outer destination: the backend itself, or its node if an address of the packet's family
 * is known. The outer source is set later, when the output device is known. */
static __always_inline void dsr_outer(struct scratch *w, const struct address *node)
{
	struct tuple *outer = &w->encap.outer;

	__builtin_memset(outer, 0, sizeof(*outer));
	outer->destination = w->out.to.destination;
	if (w->encap.dsr == DSR_IPIP) {
		outer->protocol = w->packet.is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
		return;
	}
	outer->protocol = w->out.to.protocol;
	if (w->encap.dsr == DSR_OPT) {
		outer->source = w->out.to.source;
		return;
	}
	if (node && address_is_v4(node) == !w->packet.is_v6)
		outer->destination = *node;
	outer->protocol = IPPROTO_UDP;
	outer->source_port = bpf_htons(GENEVE_SOURCE_PORT_MIN + (w->in.hash >> 18));
	outer->destination_port = bpf_htons(GENEVE_PORT);
}

/* Returns the length field of an IP header: 0 for a merged packet that is too long (BIG TCP). */
static __always_inline __be16 length_field(__u32 length)
{
	return length > 0xffff ? 0 : bpf_htons(length);
}

/* Writes the outer IPv4 header. `word` is the first word of the inner header. */
static __always_inline void outer_v4(struct iphdr *ip, const struct tuple *outer, __be32 word,
				     __u32 length)
{
	__be32 first = (word & bpf_htonl(0x00ff0000)) | bpf_htonl(0x45000000) |
		       (__be32)length_field(length) << 16;
	__be32 source = address_to_v4(&outer->source);
	__be32 destination = address_to_v4(&outer->destination);
	__be32 second = bpf_htonl(IP_DONT_FRAGMENT);
	__be32 third = bpf_htonl(DSR_HOPS << 24 | outer->protocol << 16);
	__u64 sum = (__u64)first + second + third + source + destination;
	__be32 *words = (__be32 *)ip;

	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	words[0] = first;
	words[1] = second;
	words[2] = third | (__u32)(__u16)~sum << 16;
	words[3] = source;
	words[4] = destination;
}

static __always_inline void outer_v6(struct ipv6hdr *ip, const struct tuple *outer, __be32 word,
				     __u32 length)
{
	__be32 *words = (__be32 *)ip;

	words[0] = word;
	words[1] = length_field(length) | bpf_htonl(outer->protocol << 8 | DSR_HOPS);
	__builtin_memcpy(words + 2, &outer->source, 2 * sizeof(struct address));
}

/* Writes the outer UDP header without a checksum, because the inner packet has one (RFC 768; RFC
 * 6935 for IPv6). */
static __always_inline void outer_udp(struct udphdr *udp, const struct tuple *outer, __u32 length)
{
	udp->source = outer->source_port;
	udp->dest = outer->destination_port;
	udp->len = length_field(length);
	udp->check = 0;
}

static __always_inline void geneve_fill(struct geneve_header *header, struct geneve_option *option,
					__be16 protocol, __u32 address, __be16 port)
{
	header->version_length = (sizeof(*option) + address) / 4;
	header->flags = 0x40;
	header->protocol = protocol;
	__builtin_memset(header->network, 0, sizeof(header->network) + sizeof(header->reserved));
	option->class = bpf_htons(GENEVE_OPTION_CLASS);
	option->type = GENEVE_OPTION_BACKEND;
	option->length = (sizeof(*option) + address) / 4 - 1;
	option->port = port;
	option->zero = 0;
}

static __always_inline int ipip_v4(struct context *ctx, struct scratch *w)
{
	__u32 length = w->packet.length + sizeof(struct iphdr);
	__be32 word = packet_decrement_ttl(ctx, &w->packet);
	struct iphdr *ip = packet_push(ctx, w->encap.headroom, sizeof(*ip), PUSH_IPV4);

	if (!word || !ip)
		return -1;
	outer_v4(ip, &w->encap.outer, word, length);
	return packet_pushed(ctx, ip, sizeof(*ip));
}

static __always_inline int ipip_v6(struct context *ctx, struct scratch *w)
{
	__u32 length = w->packet.length;
	__be32 word = packet_decrement_ttl(ctx, &w->packet);
	struct ipv6hdr *ip = packet_push(ctx, w->encap.headroom, sizeof(*ip), PUSH_IPV6);

	if (!word || !ip)
		return -1;
	outer_v6(ip, &w->encap.outer, word, length);
	return packet_pushed(ctx, ip, sizeof(*ip));
}

static __always_inline int geneve_v4(struct context *ctx, struct scratch *w)
{
	__u32 length = w->packet.length + sizeof(struct outer_geneve_v4);
	__be32 word = packet_decrement_ttl(ctx, &w->packet);
	struct outer_geneve_v4 *at =
		packet_push(ctx, w->encap.headroom, sizeof(*at), PUSH_IPV4 | PUSH_UDP);

	if (!word || !at)
		return -1;
	outer_v4(&at->ip, &w->encap.outer, word, length);
	outer_udp(&at->udp, &w->encap.outer, length - sizeof(at->ip));
	geneve_fill(&at->geneve.header, &at->geneve.option, bpf_htons(ETH_P_IP),
		    sizeof(at->geneve.backend), w->out.to.destination_port);
	at->geneve.backend = address_to_v4(&w->out.to.destination);
	return packet_pushed(ctx, at, sizeof(*at));
}

static __always_inline int geneve_v6(struct context *ctx, struct scratch *w)
{
	__u32 length = w->packet.length + sizeof(struct outer_geneve_v6) - sizeof(struct ipv6hdr);
	__be32 word = packet_decrement_ttl(ctx, &w->packet);
	struct outer_geneve_v6 *at =
		packet_push(ctx, w->encap.headroom, sizeof(*at), PUSH_IPV6 | PUSH_UDP);

	if (!word || !at)
		return -1;
	outer_v6(&at->ip, &w->encap.outer, word, length);
	outer_udp(&at->udp, &w->encap.outer, length);
	geneve_fill(&at->geneve.header, &at->geneve.option, bpf_htons(ETH_P_IPV6),
		    sizeof(at->geneve.backend), w->out.to.destination_port);
	at->geneve.backend = w->out.to.destination;
	return packet_pushed(ctx, at, sizeof(*at));
}

/* Layout of w->encap.headroom, in words: the Ethernet and IP header while packet_insert moves them,
 * the new IP header, and the option. */
#define HEADROOM_HEADER 14
#define HEADROOM_OPTION 24

/* Inserts the frontend as the first option of IPv4. Fails if the header has no room for it. */
static __always_inline int option_v4(struct context *ctx, struct scratch *w)
{
	struct option_v4 *option = (void *)(w->encap.headroom + HEADROOM_OPTION);
	struct iphdr *ip = (void *)(w->encap.headroom + HEADROOM_HEADER);
	const struct packet *p = &w->packet;
	__be32 before[3] = {}, after[3];

	if (packet_load(ctx, p->l3, ip, sizeof(*ip)) || ip->ihl > 15 - sizeof(*option) / 4)
		return -1;
	option->type = IPV4_OPTION_FRONTEND;
	option->length = sizeof(*option);
	option->port = p->tuple.destination_port;
	option->frontend = address_to_v4(&p->tuple.destination);
	__builtin_memcpy(before, ip, sizeof(*before));
	ip->ihl += sizeof(*option) / 4;
	ip->tot_len = length_field(p->length + sizeof(*option));
	__builtin_memcpy(after, ip, sizeof(*after));
	__builtin_memcpy(after + 1, option, sizeof(*option));
	ip->check = checksum_plus(ip->check, checksum_difference(before, after, 3, 0));
	return packet_insert(ctx, w->encap.headroom, sizeof(*ip), sizeof(*option)) ||
	       packet_put(ctx, p->l3, ip, sizeof(*ip)) ||
	       packet_put(ctx, p->l3 + sizeof(*ip), option, sizeof(*option));
}

static __always_inline int option_v6(struct context *ctx, struct scratch *w)
{
	struct option_v6 *option = (void *)(w->encap.headroom + HEADROOM_OPTION);
	struct ipv6hdr *ip = (void *)(w->encap.headroom + HEADROOM_HEADER);
	const struct packet *p = &w->packet;

	if (packet_load(ctx, p->l3, ip, sizeof(*ip)))
		return -1;
	option->next_header = ip->nexthdr;
	option->header_length = sizeof(*option) / 8 - 1;
	option->type = IPV6_OPTION_FRONTEND;
	option->length = sizeof(option->port) + sizeof(option->frontend);
	option->port = p->tuple.destination_port;
	option->frontend = p->tuple.destination;
	option->pad_type = IPV6_OPTION_PADN;
	option->pad_length = 0;
	ip->nexthdr = IPPROTO_DSTOPTS;
	ip->payload_len = length_field(p->length + sizeof(*option) - sizeof(*ip));
	return packet_insert(ctx, w->encap.headroom, sizeof(*ip), sizeof(*option)) ||
	       packet_put(ctx, p->l3, ip, sizeof(*ip)) ||
	       packet_put(ctx, p->l3 + sizeof(*ip), option, sizeof(*option));
}

/* Translates the packet from the client to the backend. An ICMP error has no ports, and only
 * ICMPv6's checksum covers the addresses. */
static __always_inline int option_readdress(struct context *ctx, struct scratch *w)
{
	struct packet *p = &w->packet;

	if (has_ports(p->tuple.protocol))
		return packet_translate(ctx, p, &w->out.to, 1);
	p->fragment = FRAGMENT_LATER; /* no ports to rewrite */
	if (packet_translate(ctx, p, &w->out.to, 1))
		return -1;
	return p->is_v6 ? packet_checksum(
				  ctx, p->l4 + 2,
				  checksum_difference(&p->tuple.source, &w->out.to.source, 8, 0))
			: 0;
}

/* Encapsulates the packet. After an error drop the packet: it may be partly changed. Global
 * function: the verifier checks it once, and not for each path to a call. */
__noinline int encapsulate(struct context *ctx, struct scratch *w)
{
	if (!w)
		return -1;
	if (w->packet.length > 0xffff - sizeof(struct outer_geneve_v6) && !packet_segment(ctx))
		return -1;
	switch (w->encap.dsr) {
	case DSR_IPIP:
		return w->packet.is_v6 ? ipip_v6(ctx, w) : ipip_v4(ctx, w);
	case DSR_GENEVE:
		return w->packet.is_v6 ? geneve_v6(ctx, w) : geneve_v4(ctx, w);
	case DSR_OPT:
		if (option_readdress(ctx, w))
			return -1;
		return w->packet.is_v6 ? option_v6(ctx, w) : option_v4(ctx, w);
	}
	return -1;
}
