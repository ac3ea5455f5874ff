// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The flow cache at tc of devices without MAC addresses, whose packets begin with the IP
 * header (WireGuard, IPIP, tun). */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define L3_DEVICE

#include "packet/ctx_tc.h"
#include "offload/forward.h"
#include "offload/learn.h"

SEC("tc")
int beeline_offload_l3(struct __sk_buff *ctx)
{
	return offload_ingress(ctx, 0);
}

SEC("tc")
int beeline_offload_l3_tunnel(struct __sk_buff *ctx)
{
	return offload_ingress(ctx, 1);
}

SEC("tc")
int beeline_offload_l3_learn(struct __sk_buff *ctx)
{
	return offload_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
