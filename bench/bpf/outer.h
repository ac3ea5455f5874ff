/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The minimal program with DSR: the client's packet goes to the backend in an outer IP header (RFC
 * 2003), unchanged. */
#pragma once

#include "minimal.h"

/* The balancer's address; set by the loader. */
const volatile __be32 outer_source = 0;

struct outer {
	struct ethhdr eth;
	struct iphdr ip;
} __attribute__((packed, aligned(2)));

/* Fills the headers in front of a packet of `length` bytes that came with the Ethernet header
 * `eth`. */
static __always_inline void outer_fill(struct outer *outer, const struct ethhdr *eth, __be16 length,
				       const struct minimal_backend *backend)
{
	__u16 *words = (__u16 *)&outer->ip;
	__u32 sum = 0;

	__builtin_memcpy(outer->eth.h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(outer->eth.h_source, eth->h_dest, ETH_ALEN);
	outer->eth.h_proto = bpf_htons(ETH_P_IP);
	outer->ip.version = 4;
	outer->ip.ihl = 5;
	outer->ip.tos = 0;
	outer->ip.tot_len = bpf_htons(bpf_ntohs(length) + sizeof(outer->ip));
	outer->ip.id = 0;
	outer->ip.frag_off = bpf_htons(0x4000);
	outer->ip.ttl = 64;
	outer->ip.protocol = IPPROTO_IPIP;
	outer->ip.check = 0;
	outer->ip.saddr = outer_source;
	outer->ip.daddr = backend->address[3];
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	outer->ip.check = ~(sum + (sum >> 16));
}
