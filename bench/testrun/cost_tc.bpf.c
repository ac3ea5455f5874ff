// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* The prelude and the minimal program at tc. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define context __sk_buff

#include "minimal.h"

/* Not read at tc. */
__u32 packet_length;

/* Nothing to do: the kernel's state of an encapsulated packet stays. */
static __always_inline int frame_restore(struct __sk_buff *ctx)
{
	return -1;
}

#include "prelude.h"

SEC("tc")
int cost_prelude(struct __sk_buff *ctx)
{
	return prelude(ctx);
}

SEC("tc")
int cost_nothing(struct __sk_buff *ctx)
{
	return TC_ACT_UNSPEC;
}

SEC("tc")
int cost_minimal(struct __sk_buff *ctx)
{
	return minimal(ctx) ? bpf_redirect(ctx->ifindex, 0) : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
