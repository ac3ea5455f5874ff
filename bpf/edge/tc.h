/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The edge at tc: packets that XDP passes, all ingress packets of devices without XDP, and all
 * egress packets. */
#pragma once

#include <linux/bpf.h>

#include "dsr/health_check.h"
#include "edge/egress.h"
#include "edge/ingress.h"
#include "lb/types.h"
#include "packet/packet.h"

static __always_inline enum action tc_ingress(struct __sk_buff *ctx)
{
	enum action action = edge_ingress(ctx);

	/* The reply to a DSR health check matches nothing else. */
	if (action == ACTION_PASS && dsr_checks_running())
		return dsr_check_ingress(ctx);
	return action;
}

static __always_inline enum action tc_egress(struct __sk_buff *ctx)
{
	/* The agent's own connections are never redirected. */
	if (ctx->mark == MARK_AGENT)
		return dsr_check_egress(ctx);
	if (ctx->mark == MARK_ENCAPSULATED) {
		ctx->mark = 0;
		return packet_pass(ctx);
	}
	return edge_egress(ctx);
}
