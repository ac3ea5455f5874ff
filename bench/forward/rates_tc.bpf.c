// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* Minimal programs at tc: the minimal program, and one that keeps checksums correct whoever
 * computes them. The minimal one treats checksums as complete: those that are left to a device, or
 * were summed by one, would be wrong. Only the kernel's helpers know. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define context __sk_buff

#include "minimal.h"
#include "outer.h"

/* An IPv4 packet before and after the change. */
struct minimal_change {
	struct iphdr ip;
	__be32 ports;
	__be32 daddr_before;
	__be32 ports_before;
	__u32 check; /* offset of the checksum of layer 4 */
};

static __always_inline int minimal_change(struct __sk_buff *ctx, struct minimal_change *change)
{
	struct ethhdr *eth = PACKET_POINTER(ctx, data);
	void *end = PACKET_POINTER(ctx, data_end);
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *l4 = (void *)(ip + 1);
	const struct minimal_backend *backend;
	__be16 ports[2];

	if ((void *)(l4 + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	backend = minimal_choose_v4(ip, l4);
	if (!backend)
		return 0;
	change->ip = *ip;
	change->daddr_before = ip->daddr;
	change->ip.daddr = backend->address[3];
	change->ip.ttl--;
	checksum_store(&change->ip.check,
		       checksum_change(bpf_htons(0xfeff), change->daddr_before, change->ip.daddr));
	ports[0] = l4->source;
	ports[1] = l4->dest;
	__builtin_memcpy(&change->ports_before, ports, sizeof(ports));
	ports[1] = backend->port;
	__builtin_memcpy(&change->ports, ports, sizeof(ports));
	change->check = sizeof(*eth) + sizeof(*ip) + (ip->protocol == IPPROTO_TCP ? 16 : 6);
	return 1;
}

static __always_inline int minimal_checksum(struct __sk_buff *ctx,
					    const struct minimal_change *change)
{
	return bpf_l4_csum_replace(ctx, change->check, change->daddr_before, change->ip.daddr,
				   BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | 4) ||
	       bpf_l4_csum_replace(ctx, change->check, change->ports_before, change->ports,
				   BPF_F_MARK_MANGLED_0 | 4);
}

SEC("tc")
int rates_tc_minimal(struct __sk_buff *ctx)
{
	return minimal(ctx) ? bpf_redirect(ctx->ifindex, 0) : TC_ACT_UNSPEC;
}

/* Updates only the checksum of layer 4, by helpers. */
SEC("tc")
int rates_tc_checksum(struct __sk_buff *ctx)
{
	struct minimal_change change;
	struct ethhdr *eth;
	struct iphdr *ip;

	if (!minimal_change(ctx, &change))
		return TC_ACT_UNSPEC;
	if (minimal_checksum(ctx, &change))
		return TC_ACT_SHOT;
	eth = PACKET_POINTER(ctx, data);
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) + sizeof(change.ports) > PACKET_POINTER(ctx, data_end))
		return TC_ACT_SHOT;
	ip->ttl = change.ip.ttl;
	ip->check = change.ip.check;
	ip->daddr = change.ip.daddr;
	__builtin_memcpy(ip + 1, &change.ports, sizeof(change.ports));
	turn_back(eth);
	return bpf_redirect(ctx->ifindex, 0);
}

SEC("tc")
int rates_tc_encapsulate(struct __sk_buff *ctx)
{
	struct ethhdr *eth = PACKET_POINTER(ctx, data);
	void *end = PACKET_POINTER(ctx, data_end);
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *l4 = (void *)(ip + 1);
	const struct minimal_backend *backend;
	struct outer *outer;
	struct ethhdr before;
	__be16 length;

	if ((void *)(l4 + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	backend = minimal_choose_v4(ip, l4);
	if (!backend)
		return TC_ACT_UNSPEC;
	before = *eth;
	length = ip->tot_len;
	if (bpf_skb_adjust_room(ctx, sizeof(struct iphdr), BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4))
		return TC_ACT_SHOT;
	outer = PACKET_POINTER(ctx, data);
	if ((void *)(outer + 1) > PACKET_POINTER(ctx, data_end))
		return TC_ACT_SHOT;
	outer_fill(outer, &before, length, backend);
	return bpf_redirect(ctx->ifindex, 0);
}

__u64 redirected; /* packets by rates_tc_redirect */

/* Decides nothing: all packets of UDP go back, with a lower TTL. No flow cache at this hook does
 * less. */
SEC("tc")
int rates_tc_redirect(struct __sk_buff *ctx)
{
	struct ethhdr *eth = PACKET_POINTER(ctx, data);
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > PACKET_POINTER(ctx, data_end) ||
	    eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	ip->ttl--;
	checksum_store(&ip->check, bpf_htons(0xfeff));
	turn_back(eth);
	redirected++;
	return bpf_redirect(ctx->ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
