// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* Counts the IPv4 packets of one protocol that arrive at a device or leave a socket, by their
 * source. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The protocol of the packets that are counted. */
const volatile __u8 counted_protocol = 0;

/* The agent sets its size. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __be32);
	__type(value, __u64);
} packets_by_source SEC(".maps");

static void count(struct iphdr *ip, void *end)
{
	__u64 *count, one = 1;
	__be32 source;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->protocol != counted_protocol)
		return;
	source = ip->saddr;
	count = bpf_map_lookup_elem(&packets_by_source, &source);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&packets_by_source, &source, &one, BPF_NOEXIST);
}

/* Packets that arrive at a device. */
SEC("xdp")
int count_arriving(struct xdp_md *xdp)
{
	struct ethhdr *eth = (void *)(long)xdp->data;
	void *end = (void *)(long)xdp->data_end;

	if ((void *)(eth + 1) <= end && eth->h_proto == bpf_htons(ETH_P_IP))
		count((void *)(eth + 1), end);
	return XDP_PASS;
}

/* Packets that leave a socket of the cgroup. */
SEC("cgroup_skb/egress")
int count_leaving(struct __sk_buff *skb)
{
	count((void *)(long)skb->data, (void *)(long)skb->data_end);
	return 1; /* let it pass */
}

char _license[] SEC("license") = "Dual BSD/GPL";
