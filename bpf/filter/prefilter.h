/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The prefilter for packets: which of them are looked up, by its bits (filter/prefilter_bits.h). */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "encap/wire.h"
#include "filter/maps.h"
#include "filter/prefilter_bits.h"
#include "filter/source_class.h"
#include "filter/types.h"
#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/header_sum.h"
#include "packet/packet.h"
#include "packet/types.h"

static __always_inline void prefilter_set(struct prefilter *prefilter, __u64 hash)
{
	__u64 bit = 1ull << (hash >> PREFILTER_BIT_SHIFT & 63), word = hash >> PREFILTER_WORD_SHIFT;

	for (int i = 0; i < 2; i++) {
		__u64 *at = &prefilter->bits[i * PREFILTER_WORDS + word];

		if (!(*(volatile __u64 *)at & bit))
			__sync_fetch_and_or(at, bit);
	}
}

/* Sets the bits for an entry, before the entry is stored. `local_reply`: the entry is for replies
 * of a backend on this node. Global function: the verifier checks it once. */
__noinline int prefilter_add(const struct tuple *key, __u32 local_reply)
{
	__u32 zero = 0;
	struct prefilter *prefilter = bpf_map_lookup_elem(&prefilters, &zero);
	__u64 address;

	if (!prefilter || !key)
		return 0;
	if (local_reply)
		address = prefilter_source(prefilter_address_of(&key->source));
	else
		address = prefilter_address_of(&key->destination);
	prefilter_set(prefilter, address);
	prefilter_set(prefilter, prefilter_endpoint(address, local_reply ? key->source_port
									 : key->destination_port));
	return 0;
}

/* The endpoints of a packet to look up. */
struct prefilter_query {
	__u64 source, destination; /* prefilter_address */
	__be16 source_port;
	__be16 destination_port;
};

static __always_inline int prefilter_match(const __u64 *bits, const struct prefilter_query *c,
					   int egress)
{
	__u64 source;

	if (prefilter_has_destination(bits, c->destination, c->destination_port))
		return 1;
	if (!egress)
		return 0;
	source = prefilter_source(c->source);
	return prefilter_has(bits, source) &&
	       prefilter_has(bits, prefilter_endpoint(source, c->source_port));
}

/* Returns whether the transport header is well-formed and the packet needs no further inspection.
 * `left` is the length of the payload by the IP header. Returns 0 for packets that a balancer may
 * have encapsulated. */
static __always_inline int prefilter_well_formed(struct context *ctx, __u8 protocol,
						 const struct udphdr *udp, __u32 l4, __u32 left)
{
	const struct tcphdr *tcp;
	__u32 said;

	switch (protocol) {
	case IPPROTO_TCP:
		tcp = linear_bytes(ctx, l4, sizeof(*tcp));
		if (!tcp || tcp->doff < sizeof(*tcp) / 4 || tcp->doff * 4u > left ||
		    !tcp_flags_are_valid(tcp_flags(tcp)))
			return 0;
		break;
	case IPPROTO_UDP:
		said = bpf_ntohs(udp->len);
		if (said < sizeof(*udp) || said > left || udp->dest == bpf_htons(GENEVE_PORT))
			return 0;
		break;
	case IPPROTO_SCTP:
		if (left < sizeof(struct sctp_header))
			return 0;
		break;
	default:
		return 0;
	}
	return packet_reaches(ctx, l4 + left);
}

static __always_inline int prefilter_miss_v4(struct context *ctx, const struct prefilter *prefilter,
					     const __u64 *bits, int egress)
{
	const struct {
		struct iphdr ip;
		struct udphdr l4;
	} *p = linear_bytes(ctx, LINK_HEADER, sizeof(*p));
	struct prefilter_query c;
	__u8 first;
	__u32 left;

	if (!p || *(const __u8 *)&p->ip != 0x45 ||
	    p->ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return 0;
	c.destination = prefilter_address(0, (__u64)p->ip.daddr << 32 | bpf_htonl(0xffff));
	c.destination_port = p->l4.dest;
	if (egress) {
		c.source = prefilter_address(0, (__u64)p->ip.saddr << 32 | bpf_htonl(0xffff));
		c.source_port = p->l4.source;
	}
	if (prefilter_match(bits, &c, egress))
		return 0;
	if (in_networks4(prefilter->services4, p->ip.daddr))
		return 0;
	first = *(const __u8 *)&p->ip.saddr; /* address_is_no_source */
	if (first == 0 || first == 127 || first >= 224)
		return 0;
	left = bpf_ntohs(p->ip.tot_len) - sizeof(p->ip);
	if (left > 0xffff) /* the IP header states a shorter packet */
		return 0;
	if (!header_sum_is_right(&p->ip))
		return 0;
	return prefilter_well_formed(ctx, p->ip.protocol, &p->l4,
				     LINK_HEADER + sizeof(struct iphdr), left);
}

static __always_inline int prefilter_miss_v6(struct context *ctx, const struct prefilter *prefilter,
					     const __u64 *bits, int egress)
{
	const struct {
		struct ipv6hdr ip;
		struct udphdr l4;
	} *p = linear_bytes(ctx, LINK_HEADER, sizeof(*p));
	__u64 source[2], destination[2];
	struct prefilter_query c;

	if (!p || p->ip.version != 6)
		return 0;
	__builtin_memcpy(source, &p->ip.saddr, sizeof(source));
	__builtin_memcpy(destination, &p->ip.daddr, sizeof(destination));
	/* Includes all IPv4-mapped, unspecified and loopback addresses. */
	if (!source[0] || (source[0] & 0xff) == 0xff || !destination[0])
		return 0;
	c.destination = prefilter_address(destination[0], destination[1]);
	c.destination_port = p->l4.dest;
	if (egress) {
		c.source = prefilter_address(source[0], source[1]);
		c.source_port = p->l4.source;
	}
	if (prefilter_match(bits, &c, egress))
		return 0;
	if (in_networks6(prefilter->services6, destination))
		return 0;
	return prefilter_well_formed(ctx, p->ip.nexthdr, &p->l4,
				     LINK_HEADER + sizeof(struct ipv6hdr),
				     bpf_ntohs(p->ip.payload_len));
}

/* Returns whether a packet certainly belongs to no Service and no flow. Returns 0, so that it is
 * parsed, unless it is a complete TCP, UDP or SCTP packet without fragmentation and options; and
 * always in a dry run. */
static __always_inline int prefilter_miss(struct context *ctx, int egress)
{
	const struct ethhdr *eth = linear_bytes(ctx, 0, LINK_HEADER);
	__u32 zero = 0;
	const struct prefilter *prefilter = bpf_map_lookup_elem(&prefilters, &zero);
	const __u64 *bits;

	if (dry_run || !eth || !prefilter || packet_tagged(ctx))
		return 0;
	bits = prefilter_bits(prefilter);
	if (!bits)
		return 0;
	if (packet_ethertype(ctx, eth) == bpf_htons(ETH_P_IP))
		return prefilter_miss_v4(ctx, prefilter, bits, egress);
	if (packet_ethertype(ctx, eth) == bpf_htons(ETH_P_IPV6))
		return prefilter_miss_v6(ctx, prefilter, bits, egress);
	return 0;
}

/* Returns whether a packet for which prefilter_miss returned true comes from a pod. */
static __always_inline int prefilter_miss_of_pod(struct context *ctx)
{
	const struct ethhdr *eth = linear_bytes(ctx, 0, LINK_HEADER);
	const struct iphdr *ip = linear_bytes(ctx, LINK_HEADER, sizeof(*ip));
	const struct ipv6hdr *ip6 = linear_bytes(ctx, LINK_HEADER, sizeof(*ip6));
	__u32 zero = 0;
	const struct prefilter *prefilter = bpf_map_lookup_elem(&prefilters, &zero);
	struct address source;

	if (!eth || !ip || !prefilter)
		return 0;
	if (packet_ethertype(ctx, eth) == bpf_htons(ETH_P_IP))
		address_from_v4(&source, ip->saddr);
	else if (ip6)
		__builtin_memcpy(&source, &ip6->saddr, sizeof(source));
	else
		return 0;
	if (in_pod_networks(prefilter, &source))
		return 1;
	return !prefilter_has_all_pods(prefilter) && class_lookup(&source) == FROM_POD;
}
