// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* The prelude and the minimal program at XDP. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define context xdp_md

#include "minimal.h"
#include "records.h"

/* Length of the packet that the prelude makes: at least a frame. */
__u32 packet_length;

/* Headers were added and removed at the start of the packet. */
static __always_inline int frame_restore(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_head(ctx, (int)bpf_xdp_get_buff_len(ctx) - (int)packet_length);
}

#include "prelude.h"

SEC("xdp.frags")
int cost_prelude(struct xdp_md *ctx)
{
	return prelude(ctx);
}

SEC("xdp.frags")
int cost_nothing(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp.frags")
int cost_minimal(struct xdp_md *ctx)
{
	return minimal(ctx) ? XDP_TX : XDP_PASS;
}

SEC("xdp.frags")
int cost_records(struct xdp_md *ctx)
{
	return minimal_record(ctx) && minimal(ctx) ? XDP_TX : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
