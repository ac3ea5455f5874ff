// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge, entered from tc: what XDP leaves, all where there is no XDP, and all
 * that leaves the node. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/packet_tc.h"
#include "lib/edge.h"
#include "lib/outbound.h"

/* For the agent's types: not all are types of variables. */
const struct edge_event *unused_edge_event __attribute__((unused));
const struct explanation *unused_explanation __attribute__((unused));
const enum edge_reason *unused_edge_reason __attribute__((unused));
const enum track_state *unused_track_state __attribute__((unused));
const enum track_flag *unused_track_flag __attribute__((unused));
const enum door_size *unused_door_size __attribute__((unused));
const enum door_multiplier *unused_door_multiplier __attribute__((unused));
const enum set_mix *unused_set_mix __attribute__((unused));
const enum conntrack_timeout *unused_conntrack_timeout __attribute__((unused));
const enum door_state *unused_door_state __attribute__((unused));

SEC("tc")
int beeline_edge_ingress(struct __sk_buff *ctx)
{
	return edge_ingress(ctx);
}

SEC("tc")
int beeline_edge_egress(struct __sk_buff *ctx)
{
	/* The agent means the address that it names, whoever has it. */
	if (ctx->mark == MARK_AGENT)
		return packet_pass(ctx);
	if (ctx->mark == MARK_ENCAPSULATED) {
		ctx->mark = 0;
		return packet_pass(ctx);
	}
	return edge_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
