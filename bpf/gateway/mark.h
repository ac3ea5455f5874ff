/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that the gateway's program has sent pass the egress of their device, where it learns. The
 * mark tells them from packets of the stack, which overwrites this field in every packet that it
 * receives (the control buffer of IP). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define GATEWAY_MARK 0x6265656c

static __always_inline void gateway_mark(struct __sk_buff *ctx)
{
	ctx->cb[0] = GATEWAY_MARK;
}

static __always_inline int gateway_is_marked(const struct __sk_buff *ctx)
{
	return ctx->cb[0] == GATEWAY_MARK;
}
