// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The gateway's flow cache, at tc of its devices. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_tc.h"
#include "gateway/forward.h"
#include "gateway/learn.h"

/* Keeps types in the BTF for the agent: no variable has them. */
const struct gateway_candidate *unused_gateway_candidate __attribute__((unused));
const enum gateway_state *unused_gateway_state __attribute__((unused));
const enum gateway_flag *unused_gateway_flag __attribute__((unused));
const enum gateway_path *unused_gateway_path __attribute__((unused));
const enum gateway_device *unused_gateway_device __attribute__((unused));
const enum gateway_refusal *unused_gateway_refusal __attribute__((unused));

SEC("tc")
int beeline_gateway(struct __sk_buff *ctx)
{
	return gateway_ingress(ctx, 0);
}

/* At tunnels in external mode. */
SEC("tc")
int beeline_gateway_tunnel(struct __sk_buff *ctx)
{
	return gateway_ingress(ctx, 1);
}

SEC("tc")
int beeline_gateway_learn(struct __sk_buff *ctx)
{
	return gateway_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
