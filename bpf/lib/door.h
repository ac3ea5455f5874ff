/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The door: a set of bits that says of most packets which are not ours that they are not,
 * before anything is looked up. It has a bit for
 *
 *   - the address of each frontend, and for that with its port
 *   - the destination of each packet that has a record (`tracks`, `half_open`), in the same way
 *   - the source, and not the destination, of what backends of this node answer: such records
 *     are met where packets leave, and their destinations are all clients that there are
 *
 * A bit that is set in vain costs a look at the tables. One that is missing would lose packets:
 * it is set before what it is for, and cleared only by the agent, which makes a new set of bits
 * from all that there is while programs set theirs in both, and then turns `state`
 * (docs/architecture.md). The door of a new table is open: everything is looked up. */
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

#include "address.h"
#include "client.h"
#include "dsr.h"
#include "edge_tables.h"
#include "edge_types.h"
#include "packet.h"
#include "tables.h"

#define DOOR_MULTIPLIER	      ((__u64)DOOR_FIRST_HIGH << 32 | DOOR_FIRST_LOW)
#define DOOR_OTHER_MULTIPLIER ((__u64)DOOR_LAST_HIGH << 32 | DOOR_LAST_LOW)

/* Of an address as two words, and of one end of a packet. The agent does the same
 * (datapath.Door): another hash is another layout of the tables. */
static __always_inline __u64 door_address(__u64 first, __u64 last)
{
	return (first * DOOR_MULTIPLIER ^ last) * DOOR_OTHER_MULTIPLIER;
}

static __always_inline __u64 door_end(__u64 address, __be16 port)
{
	return (address + port + 1) * DOOR_MULTIPLIER;
}

/* The same address as a source. */
static __always_inline __u64 door_source(__u64 address)
{
	return ~address * DOOR_OTHER_MULTIPLIER;
}

static __always_inline __u64 door_address_of(const struct address *a)
{
	const __u32 *w = address_words_const(a);

	return door_address((__u64)w[1] << 32 | w[0], (__u64)w[3] << 32 | w[2]);
}

static __always_inline void door_set(struct door *door, __u64 hash)
{
	__u64 bit = 1ull << (hash >> DOOR_BIT_SHIFT & 63), word = hash >> DOOR_WORD_SHIFT;

	for (int i = 0; i < 2; i++) {
		__u64 *at = &door->bits[i * DOOR_WORDS + word];

		if (!(*(volatile __u64 *)at & bit))
			__sync_fetch_and_or(at, bit);
	}
}

/* Sets the bits for a record, before it is stored. `answers`: it is for what a backend of this
 * node answers. Not static: the verifier looks at it once. */
__noinline int door_admit(const struct tuple *key, __u32 answers)
{
	__u32 zero = 0;
	struct door *door = bpf_map_lookup_elem(&doors, &zero);
	__u64 address;

	if (!door || !key)
		return 0;
	if (answers)
		address = door_source(door_address_of(&key->source));
	else
		address = door_address_of(&key->destination);
	door_set(door, address);
	door_set(door, door_end(address, answers ? key->source_port : key->destination_port));
	return 0;
}

static __always_inline int door_has(const __u64 *bits, __u64 hash)
{
	return bits[hash >> DOOR_WORD_SHIFT] >> (hash >> DOOR_BIT_SHIFT & 63) & 1;
}

/* The ends of a packet that the door is asked about. */
struct caller {
	__u64 source, destination; /* door_address */
	__be16 source_port;
	__be16 destination_port;
};

static __always_inline int door_knows(const __u64 *bits, const struct caller *c, int leaving)
{
	__u64 source;

	if (door_has(bits, c->destination) &&
	    (door_has(bits, door_end(c->destination, c->destination_port)) ||
	     door_has(bits, door_end(c->destination, 0))))
		return 1;
	if (!leaving)
		return 0;
	source = door_source(c->source);
	return door_has(bits, source) && door_has(bits, door_end(source, c->source_port));
}

static __always_inline int among4(const struct door_network4 *networks, __be32 a)
{
	for (int i = 0; i < DOOR_NETWORKS; i++)
		if ((a & networks[i].mask) == networks[i].value)
			return 1;
	return 0;
}

static __always_inline int among6(const struct door_network6 *networks, const __u64 *a)
{
	for (int i = 0; i < DOOR_NETWORKS; i++)
		if ((a[0] & networks[i].mask[0]) == networks[i].value[0] &&
		    (a[1] & networks[i].mask[1]) == networks[i].value[1])
			return 1;
	return 0;
}

/* Whether the rest of a packet is as the packet's parser wants it; `left` is what the IP
 * header says that there is of it. What a balancer may have encapsulated is looked into. */
static __always_inline int door_whole(struct context *ctx, __u8 protocol, const struct udphdr *udp,
				      __u32 l4, __u32 left)
{
	const struct tcphdr *tcp;
	__u32 said;

	switch (protocol) {
	case IPPROTO_TCP:
		tcp = linear_bytes(ctx, l4, sizeof(*tcp));
		if (!tcp || tcp->doff < sizeof(*tcp) / 4 || tcp->doff * 4u > left)
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

static __always_inline int shut_out_v4(struct context *ctx, const struct door *door,
				       const __u64 *bits, int leaving)
{
	const struct {
		struct iphdr ip;
		struct udphdr l4;
	} *p = linear_bytes(ctx, sizeof(struct ethhdr), sizeof(*p));
	struct caller c;
	__u8 first;
	__u32 left;

	if (!p || *(const __u8 *)&p->ip != 0x45 ||
	    p->ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return 0;
	c.destination = door_address(0, (__u64)p->ip.daddr << 32 | bpf_htonl(0xffff));
	c.destination_port = p->l4.dest;
	if (leaving) {
		c.source = door_address(0, (__u64)p->ip.saddr << 32 | bpf_htonl(0xffff));
		c.source_port = p->l4.source;
	}
	if (door_knows(bits, &c, leaving))
		return 0;
	if (among4(door->services4, p->ip.daddr))
		return 0;
	first = *(const __u8 *)&p->ip.saddr; /* address_is_no_source */
	if (first == 0 || first == 127 || first >= 224)
		return 0;
	left = bpf_ntohs(p->ip.tot_len) - sizeof(p->ip);
	if (left > 0xffff) /* it says that it is shorter */
		return 0;
	return door_whole(ctx, p->ip.protocol, &p->l4, sizeof(struct ethhdr) + sizeof(struct iphdr),
			  left);
}

static __always_inline int shut_out_v6(struct context *ctx, const struct door *door,
				       const __u64 *bits, int leaving)
{
	const struct {
		struct ipv6hdr ip;
		struct udphdr l4;
	} *p = linear_bytes(ctx, sizeof(struct ethhdr), sizeof(*p));
	__u64 source[2], destination[2];
	struct caller c;

	if (!p || p->ip.version != 6)
		return 0;
	__builtin_memcpy(source, &p->ip.saddr, sizeof(source));
	__builtin_memcpy(destination, &p->ip.daddr, sizeof(destination));
	/* Among these are all that is mapped from IPv4, unspecified or of loopback. */
	if (!source[0] || (source[0] & 0xff) == 0xff || !destination[0])
		return 0;
	c.destination = door_address(destination[0], destination[1]);
	c.destination_port = p->l4.dest;
	if (leaving) {
		c.source = door_address(source[0], source[1]);
		c.source_port = p->l4.source;
	}
	if (door_knows(bits, &c, leaving))
		return 0;
	if (among6(door->services6, destination))
		return 0;
	return door_whole(ctx, p->ip.nexthdr, &p->l4,
			  sizeof(struct ethhdr) + sizeof(struct ipv6hdr),
			  bpf_ntohs(p->ip.payload_len));
}

/* The set of bits that holds, or none. */
static __always_inline const __u64 *door_bits(const struct door *door)
{
	switch (*(const volatile __u32 *)&door->state) {
	case DOOR_FIRST:
		return door->bits;
	case DOOR_SECOND:
		return door->bits + DOOR_WORDS;
	default:
		return 0;
	}
}

/* Whether Services may have all ports and protocols of an address. */
static __always_inline int door_may_have(const struct address *a)
{
	const __u32 *w = address_words_const(a);
	__u64 words[2], hash = door_address_of(a);
	__u32 zero = 0;
	const struct door *door = bpf_map_lookup_elem(&doors, &zero);
	const __u64 *bits = door ? door_bits(door) : 0;

	if (dry_run || !bits || (door_has(bits, hash) && door_has(bits, door_end(hash, 0))))
		return 1;
	if (address_is_v4(a))
		return among4(door->services4, w[3]);
	__builtin_memcpy(words, w, sizeof(words));
	return among6(door->services6, words);
}

/* Whether a packet is none of ours. Of what is no whole TCP, UDP or SCTP packet in one piece
 * and without options it does not say so, and neither in a dry run: that is looked at closer. */
static __always_inline int shut_out(struct context *ctx, int leaving)
{
	const struct ethhdr *eth = linear_bytes(ctx, 0, sizeof(*eth));
	__u32 zero = 0;
	const struct door *door = bpf_map_lookup_elem(&doors, &zero);
	const __u64 *bits;

	if (dry_run || !eth || !door || packet_tagged(ctx))
		return 0;
	bits = door_bits(door);
	if (!bits)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return shut_out_v4(ctx, door, bits, leaving);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return shut_out_v6(ctx, door, bits, leaving);
	return 0;
}

/* Whether a packet that has been shut out comes from a pod. */
static __always_inline int pod_is_shut_out(struct context *ctx)
{
	const struct ethhdr *eth = linear_bytes(ctx, 0, sizeof(*eth));
	const struct iphdr *ip = linear_bytes(ctx, sizeof(*eth), sizeof(*ip));
	const struct ipv6hdr *ip6 = linear_bytes(ctx, sizeof(*eth), sizeof(*ip6));
	__u32 zero = 0;
	const struct door *door = bpf_map_lookup_elem(&doors, &zero);
	struct address source;

	if (!eth || !ip || !door)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		address_from_v4(&source, ip->saddr);
	else if (ip6)
		__builtin_memcpy(&source, &ip6->saddr, sizeof(source));
	else
		return 0;
	if (among_pods(door, &source))
		return 1;
	return !door_has_all_pods(door) && class_in_table(&source) == FROM_POD;
}
