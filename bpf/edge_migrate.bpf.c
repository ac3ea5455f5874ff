// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge at tc while the predecessor's tables are migrated. A separate object: a program that may
 * make a tail call is slower even if it makes none. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "edge/tc.h"
#include "migrate/predecessor.h"

SEC("tc")
int beeline_edge_ingress(struct __sk_buff *ctx)
{
	if (migration_predecessor(ctx))
		bpf_tail_call(ctx, &predecessors, MIGRATION_INGRESS);
	return tc_ingress(ctx);
}

SEC("tc")
int beeline_edge_egress(struct __sk_buff *ctx)
{
	if (migration_predecessor(ctx))
		bpf_tail_call(ctx, &predecessors, MIGRATION_EGRESS);
	return tc_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
