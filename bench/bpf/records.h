/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Adds a record per flow to the minimal program. Include after the definition of `context`. */
#pragma once

#include "minimal.h"

struct minimal_flow {
	__u32 source[4];
	__u32 destination[4];
	__u32 ports;
	__u32 protocol;
};

/* As long as an entry of Beeline's. */
struct minimal_record {
	__u64 packets;
	__u64 bytes;
	__u64 rest[11];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct minimal_flow);
	__type(value, struct minimal_record);
} minimal_records SEC(".maps");

static const struct minimal_record no_packets;

/* Counts an IPv4 packet in its flow's record. */
static __always_inline int minimal_record(struct context *ctx)
{
	struct ethhdr *eth = PACKET_POINTER(ctx, data);
	void *end = PACKET_POINTER(ctx, data_end);
	struct iphdr *ip = (void *)(eth + 1);
	struct minimal_flow flow = {.source = {0, 0, bpf_htonl(0xffff)},
				    .destination = {0, 0, bpf_htonl(0xffff)}};
	struct minimal_record *record;

	if ((void *)(ip + 1) + sizeof(flow.ports) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	flow.source[3] = ip->saddr;
	flow.destination[3] = ip->daddr;
	flow.protocol = ip->protocol;
	__builtin_memcpy(&flow.ports, ip + 1, sizeof(flow.ports));
	record = bpf_map_lookup_elem(&minimal_records, &flow);
	if (!record) {
		bpf_map_update_elem(&minimal_records, &flow, &no_packets, BPF_ANY);
		record = bpf_map_lookup_elem(&minimal_records, &flow);
	}
	if (!record)
		return 0;
	record->packets++;
	record->bytes += bpf_ntohs(ip->tot_len);
	return 1;
}
