/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The minimal program, the yardstick: the least that a load balancer does. It looks up the Service
 * in a hash and the backend in an array, by a hash of the client's address and port, writes the
 * backend's address into the packet and sends it back by its device. It has no flows, routes,
 * options, fragments, ICMP or counters. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet/access.h"

/* An address of 16 bytes, IPv4-mapped. */
struct minimal_service {
	__u32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

struct minimal_backend {
	__u32 address[4];
	__be16 port;
	__u16 reserved;
};

/* Value: the number of backends in `minimal_backends`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct minimal_service);
	__type(value, __u32);
} minimal_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct minimal_backend);
} minimal_backends SEC(".maps");

/* RFC 1624, with words of 32 bits. */
static __always_inline __u64 checksum_change(__u64 sum, __u32 before, __u32 after)
{
	return sum + (__u32)~before + after;
}

static __always_inline void checksum_store(__sum16 *check, __u64 sum)
{
	sum += (__u16) ~*check;
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + ((sum >> 32) & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*check = ~sum;
}

static __always_inline void turn_back(struct ethhdr *eth)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
}

static __always_inline const struct minimal_backend *
minimal_choose(const struct minimal_service *asked, __u32 client, const struct tcphdr *l4)
{
	const __u32 *count = bpf_map_lookup_elem(&minimal_services, asked);
	__u32 ports, hash;

	if (!count)
		return 0;
	__builtin_memcpy(&ports, l4, sizeof(ports));
	hash = (client ^ ports) * 0x9e3779b1;
	hash = ((__u64)hash * *count) >> 32;
	return bpf_map_lookup_elem(&minimal_backends, &hash);
}

/* Writes the backend's port; `sum` is the difference of the addresses. */
static __always_inline void minimal_port(struct tcphdr *l4, __u8 protocol, __u64 sum,
					 const struct minimal_backend *backend)
{
	__sum16 *check = protocol == IPPROTO_TCP ? &l4->check : (__sum16 *)l4 + 3;

	sum = checksum_change(sum, l4->dest, backend->port);
	l4->dest = backend->port;
	checksum_store(check, sum);
}

/* Returns the backend of a packet that has all of `l4`. */
static __always_inline const struct minimal_backend *minimal_choose_v4(const struct iphdr *ip,
								       const struct tcphdr *l4)
{
	struct minimal_service asked = {.address = {0, 0, bpf_htonl(0xffff)}};

	if (ip->ihl != 5)
		return 0;
	asked.address[3] = ip->daddr;
	asked.port = l4->dest;
	asked.protocol = ip->protocol;
	return minimal_choose(&asked, ip->saddr, l4);
}

static __always_inline int minimal_v4(struct ethhdr *eth, void *end)
{
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *l4 = (void *)(ip + 1);
	const struct minimal_backend *backend;
	__u64 sum;

	if ((void *)(l4 + 1) > end)
		return 0;
	backend = minimal_choose_v4(ip, l4);
	if (!backend)
		return 0;
	sum = checksum_change(0, ip->daddr, backend->address[3]);
	ip->daddr = backend->address[3];
	minimal_port(l4, ip->protocol, sum, backend);
	ip->ttl--;
	checksum_store(&ip->check, sum + bpf_htons(0xfeff));
	turn_back(eth);
	return 1;
}

static __always_inline int minimal_v6(struct ethhdr *eth, void *end)
{
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *l4 = (void *)(ip + 1);
	struct minimal_service asked = {};
	const struct minimal_backend *backend;
	__u64 sum = 0;

	if ((void *)(l4 + 1) > end)
		return 0;
	__builtin_memcpy(asked.address, &ip->daddr, sizeof(asked.address));
	asked.port = l4->dest;
	asked.protocol = ip->nexthdr;
	backend = minimal_choose(&asked, ip->saddr.in6_u.u6_addr32[3], l4);
	if (!backend)
		return 0;
	for (int i = 0; i < 4; i++)
		sum = checksum_change(sum, asked.address[i], backend->address[i]);
	__builtin_memcpy(&ip->daddr, backend->address, sizeof(backend->address));
	minimal_port(l4, ip->nexthdr, sum, backend);
	ip->hop_limit--;
	turn_back(eth);
	return 1;
}

/* Returns whether to send the packet back. */
static __always_inline int minimal(struct context *ctx)
{
	struct ethhdr *eth = PACKET_POINTER(ctx, data);
	void *end = PACKET_POINTER(ctx, data_end);

	if ((void *)(eth + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return minimal_v4(eth, end);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return minimal_v6(eth, end);
	return 0;
}
