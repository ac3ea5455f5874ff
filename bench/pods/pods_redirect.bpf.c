// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* A shortcut between pods that decides nothing: TCP and UDP that arrive by a device all go to one
 * pod, or to the neighbour behind one device. To a pod it bounds what any program at this hook can
 * save. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Set by the loader. */
const volatile __u32 to_device = 0;
const volatile __u8 to_pod = 0;
const volatile __u8 pod_mac[ETH_ALEN] = {};

__u64 packets; /* redirected; CPUs may lose some of each other's increments */

static __always_inline int is_traffic(const struct ethhdr *eth, const void *end)
{
	const struct iphdr *ip = (void *)(eth + 1);
	const struct ipv6hdr *ip6 = (void *)(eth + 1);
	__u8 protocol;

	if (eth->h_proto == bpf_htons(ETH_P_IP) && (void *)(ip + 1) <= end)
		protocol = ip->protocol;
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end)
		protocol = ip6->nexthdr;
	else
		return 0;
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

SEC("tc")
int pods_redirect(struct __sk_buff *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;

	if ((void *)(eth + 1) > end || !is_traffic(eth, end))
		return TC_ACT_UNSPEC;
	packets++;
	if (!to_pod)
		return bpf_redirect_neigh(to_device, 0, 0, 0);
	for (int i = 0; i < ETH_ALEN; i++)
		eth->h_dest[i] = pod_mac[i];
	return bpf_redirect_peer(to_device, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
