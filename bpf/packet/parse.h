/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parses IP with its options or extension headers, TCP, UDP and SCTP. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "lb/address.h"
#include "packet/access.h"
#include "packet/header_sum.h"
#include "packet/packet.h"
#include "packet/tuple.h"

#define IPV6_FRAGMENT_OFFSET 0xfff8
#define IPV6_MORE_FRAGMENTS  0x0001
#define EXTENSION_HEADERS    6

struct ipv6_fragment {
	__u8 next_header;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

struct ipv6_extension {
	__u8 next_header;
	__u8 length; /* in units of 8 octets, without the first 8 */
};

/* Returns the length of a packet by its IP header, or its actual length if the field is 0: merged
 * packets too long for the field have 0 there (BIG TCP). */
static __always_inline __u32 length_of_header(struct context *ctx, const struct packet *p,
					      __u32 field, __u32 before)
{
	if (!field && packet_segment(ctx))
		return packet_length(ctx) - p->l3;
	return field + before;
}

static __always_inline enum parsed parse_header_v4(struct context *ctx, struct packet *p,
						   const struct iphdr *ip)
{
	__u16 fragment;

	if (ip->version != 4 || ip->ihl < 5)
		return PARSED_MALFORMED;
	address_put_v4(&p->tuple.source, ip->saddr);
	address_put_v4(&p->tuple.destination, ip->daddr);
	p->tuple.protocol = ip->protocol;
	p->hops = ip->ttl;
	p->tos = ip->tos;
	p->length = length_of_header(ctx, p, bpf_ntohs(ip->tot_len), 0);
	p->l4 = p->l3 + ip->ihl * 4;
	if (p->length < ip->ihl * 4)
		return PARSED_MALFORMED;
	fragment = bpf_ntohs(ip->frag_off);
	p->fragment_id = ip->id;
	if (fragment & IP_FRAGMENT_OFFSET)
		p->fragment = FRAGMENT_LATER;
	else if (fragment & IP_MORE_FRAGMENTS)
		p->fragment = FRAGMENT_FIRST;
	return has_ports(ip->protocol) ? PARSED : PARSED_OTHER;
}

/* Parses an IPv4 header and verifies its checksum. */
static __always_inline enum parsed parse_v4(struct context *ctx, struct packet *p)
{
	const struct iphdr *ip = packet_bytes(ctx, p->l3, sizeof(*ip));
	enum parsed parsed;
	int right;

	if (!ip)
		return PARSED_MALFORMED;
	right = header_sum_is_right(ip);
	parsed = parse_header_v4(ctx, p, ip);
	if (parsed == PARSED_MALFORMED)
		return parsed;
	if (p->l4 - p->l3 > sizeof(*ip))
		right = long_header_sum_is_right(ctx, p->l3, p->l4);
	return right ? parsed : PARSED_MALFORMED;
}

/* Parses the IPv4 header that an ICMP error quotes. The stack does not verify its checksum either.
 */
static __always_inline enum parsed parse_quoted_v4(struct context *ctx, struct packet *p)
{
	const struct iphdr *ip = packet_bytes(ctx, p->l3, sizeof(*ip));

	return ip ? parse_header_v4(ctx, p, ip) : PARSED_MALFORMED;
}

/* Skips one extension header (RFC 8200 section 4). Returns whether there was one. Skips a
 * routing header whatever segments it has left, and no authentication header, like netfilter
 * (ipv6_find_hdr with IP6_FH_F_AUTH). */
static __always_inline int skip_extension(struct context *ctx, struct packet *p, __u8 *next)
{
	const struct ipv6_extension *extension;
	const struct ipv6_fragment *fragment;

	switch (*next) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
		extension = packet_bytes(ctx, p->l4, sizeof(*extension));
		if (!extension)
			return 0;
		*next = extension->next_header;
		p->l4 += (extension->length + 1) * 8;
		return 1;
	case IPPROTO_FRAGMENT:
		fragment = packet_bytes(ctx, p->l4, sizeof(*fragment));
		if (!fragment)
			return 0;
		*next = fragment->next_header;
		p->l4 += sizeof(*fragment);
		p->fragment_id = fragment->id;
		if (bpf_ntohs(fragment->offset) & IPV6_FRAGMENT_OFFSET)
			p->fragment = FRAGMENT_LATER;
		else if (bpf_ntohs(fragment->offset) & IPV6_MORE_FRAGMENTS)
			p->fragment = FRAGMENT_FIRST;
		return 1;
	}
	return 0;
}

/* Skips the extension headers of a packet and moves p->l4 behind them. Returns the protocol there.
 * Global function: the verifier checks it once. */
__noinline __u32 skip_extensions(struct context *ctx, struct packet *p, __u32 first)
{
	__u8 next = first;

	if (!p)
		return next;
	for (int i = 0; i < EXTENSION_HEADERS; i++) {
		/* The payload of a later fragment does not begin with a header. */
		if (p->fragment == FRAGMENT_LATER || !skip_extension(ctx, p, &next))
			break;
	}
	return next;
}

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_FRAGMENT;
}

static __always_inline enum parsed parse_v6(struct context *ctx, struct packet *p)
{
	const struct ipv6hdr *ip = packet_bytes(ctx, p->l3, sizeof(*ip));
	__u8 next;

	if (!ip)
		return PARSED_MALFORMED;
	if (ip->version != 6)
		return PARSED_MALFORMED;
	address_put(&p->tuple.source, &ip->saddr);
	address_put(&p->tuple.destination, &ip->daddr);
	/* IPv4-mapped addresses never appear on the wire (RFC 4942 section 2.2), and would be
	 * mistaken for IPv4 here. */
	if (address_is_v4(&p->tuple.source) || address_is_v4(&p->tuple.destination))
		return PARSED_OTHER;
	p->is_v6 = 1;
	p->hops = ip->hop_limit;
	p->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	p->length = length_of_header(ctx, p, bpf_ntohs(ip->payload_len), sizeof(*ip));
	p->l4 = p->l3 + sizeof(*ip);
	next = ip->nexthdr;
	if (is_extension(next))
		next = skip_extensions(ctx, p, next);
	p->tuple.protocol = next;
	return has_ports(next) ? PARSED : PARSED_OTHER;
}

/* Maps a chunk type to the equivalent TCP flags, so that both protocols take one code path. */
static __always_inline __u8 sctp_flags(__u8 chunk)
{
	switch (chunk) {
	case SCTP_INIT:
		return TCP_SYN;
	case SCTP_SHUTDOWN:
	case SCTP_SHUTDOWN_ACK:
		return TCP_FIN;
	case SCTP_ABORT:
	case SCTP_SHUTDOWN_COMPLETE:
		return TCP_RST;
	}
	return 0;
}

/* Copies the header instead of pulling it into linear data: a packet sent by this node may be
 * several packets in one skb (GSO_BY_FRAGS), and the kernel loses their boundaries if the chunks
 * are pulled. */
static __always_inline enum parsed parse_sctp(struct context *ctx, struct packet *p, __u32 left)
{
	struct sctp_header sctp;

	if (left < sizeof(sctp) || packet_load(ctx, p->l4, &sctp, sizeof(sctp)))
		return PARSED_MALFORMED;
	p->tuple.source_port = sctp.source;
	p->tuple.destination_port = sctp.dest;
	p->tcp_flags = sctp_flags(sctp.chunk);
	return PARSED;
}

/* Returns the length of a datagram. The length of a merged packet in a tunnel may not fit the
 * field, either. */
static __always_inline __u32 udp_length(struct context *ctx, const struct udphdr *udp, __u32 left)
{
	return !udp->len && packet_segment(ctx) ? left : bpf_ntohs(udp->len);
}

static __always_inline enum parsed parse_ports(struct context *ctx, struct packet *p)
{
	__u32 left = p->l3 + p->length - p->l4;

	if (p->tuple.protocol == IPPROTO_TCP) {
		const struct tcphdr *tcp = packet_bytes(ctx, p->l4, sizeof(*tcp));

		if (!tcp || tcp->doff * 4 < sizeof(*tcp) || tcp->doff * 4 > left)
			return PARSED_MALFORMED;
		*tuple_ports(&p->tuple) = *(const __u32 *)&tcp->source;
		p->tcp_flags = tcp_flags(tcp);
		if (!tcp_flags_are_valid(p->tcp_flags))
			return PARSED_MALFORMED;
		p->sequence = bpf_ntohl(tcp->seq);
		p->acknowledged = bpf_ntohl(tcp->ack_seq);
		p->payload = left - tcp->doff * 4;
	} else if (p->tuple.protocol == IPPROTO_SCTP) {
		return parse_sctp(ctx, p, left);
	} else {
		const struct udphdr *udp = packet_bytes(ctx, p->l4, sizeof(*udp));
		__u32 said = udp ? udp_length(ctx, udp, left) : 0;

		if (left < sizeof(*udp) || said < sizeof(*udp))
			return PARSED_MALFORMED;
		if (p->fragment == FRAGMENT_NONE && said > left)
			return PARSED_MALFORMED;
		*tuple_ports(&p->tuple) = *(const __u32 *)&udp->source;
	}
	return PARSED;
}

/* Parses headers of an ethertype at p->l3. Every length is checked against the end of the packet.
 */
static __always_inline enum parsed parse_from(struct context *ctx, struct packet *p, __be16 type)
{
	enum parsed parsed;

	switch (type) {
	case bpf_htons(ETH_P_IP):
		parsed = parse_v4(ctx, p);
		break;
	case bpf_htons(ETH_P_IPV6):
		parsed = parse_v6(ctx, p);
		break;
	default:
		return PARSED_OTHER;
	}
	if (parsed != PARSED)
		return parsed;
	if (!packet_reaches(ctx, p->l3 + p->length) || p->l4 > p->l3 + p->length)
		return PARSED_MALFORMED;
	if (p->l4 > HEADERS_END - sizeof(struct tcphdr))
		return PARSED_OTHER;
	return p->fragment == FRAGMENT_LATER ? PARSED : parse_ports(ctx, p);
}

/* Parses the packet of the hook. */
static __always_inline enum parsed packet_parse(struct context *ctx, struct packet *p)
{
	const struct ethhdr *eth = packet_bytes(ctx, 0, LINK_HEADER);

	if (!eth || packet_tagged(ctx))
		return PARSED_OTHER;
	p->l3 = LINK_HEADER;
	return parse_from(ctx, p, packet_ethertype(ctx, eth));
}
