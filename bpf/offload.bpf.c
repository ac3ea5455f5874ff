// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The flow cache, at tc of its devices. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_tc.h"
#include "offload/forward.h"
#include "offload/learn.h"

/* Keeps types in the BTF for the agent: no variable has them. */
const struct offload_candidate *unused_offload_candidate __attribute__((unused));
const enum offload_state *unused_offload_state __attribute__((unused));
const enum offload_flag *unused_offload_flag __attribute__((unused));
const enum offload_path *unused_offload_path __attribute__((unused));
const enum offload_device *unused_offload_device __attribute__((unused));
const enum offload_refusal *unused_offload_refusal __attribute__((unused));

SEC("tc")
int beeline_offload(struct __sk_buff *ctx)
{
	return offload_ingress(ctx, 0);
}

/* At tunnels in external mode. */
SEC("tc")
int beeline_offload_tunnel(struct __sk_buff *ctx)
{
	return offload_ingress(ctx, 1);
}

SEC("tc")
int beeline_offload_learn(struct __sk_buff *ctx)
{
	return offload_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
