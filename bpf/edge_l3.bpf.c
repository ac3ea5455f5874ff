// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge at tc of devices without MAC addresses, whose packets begin with the IP header
 * (WireGuard, IPIP, tun). A separate object: in the programs for Ethernet the offset of the IP
 * header stays a constant. The agent loads it when the first such device needs it. During a
 * migration it passes packets to the predecessor's programs, like edge_migrate.bpf.c. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define L3_DEVICE

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "edge/tc.h"
#include "migrate/predecessor.h"

SEC("tc")
int beeline_l3_ingress(struct __sk_buff *ctx)
{
	if (migration_predecessor(ctx))
		bpf_tail_call(ctx, &predecessors, MIGRATION_L3_INGRESS);
	return tc_ingress(ctx);
}

SEC("tc")
int beeline_l3_egress(struct __sk_buff *ctx)
{
	if (migration_predecessor(ctx))
		bpf_tail_call(ctx, &predecessors, MIGRATION_L3_EGRESS);
	return tc_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
