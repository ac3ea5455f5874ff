/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets to a Service's address that belong to a flow of the kernel: the stack gets them. Asked
 * before a new flow is created, because only the answer to such a flow has no entry. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "netfilter/known.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* Returns whether a packet may belong to a flow of the kernel. A SYN never answers anything, so a
 * SYN flood costs no lookup. Conntrack's lookup has no SCTP. A balancer has asked before it
 * encapsulated a packet. */
static __always_inline int kernel_may_own(const struct scratch *w)
{
	const struct packet *p = &w->packet;

	if (w->decap.dsr)
		return 0;
	return p->tuple.protocol == IPPROTO_UDP ||
	       (p->tuple.protocol == IPPROTO_TCP && !tcp_opens(p));
}

/* Passes a packet to the stack if it belongs to a flow of the kernel. */
static __always_inline enum action kernel_flow_pass(struct context *ctx, const struct scratch *w)
{
	if (!kernel_may_own(w))
		return ACTION_CONTINUE;
	switch (kernel_owner(ctx, &w->packet.tuple, w->in.egress)) {
	case KERNEL_FLOW:
		return pass(ctx, EDGE_KERNEL_FLOW);
	case KERNEL_SOCKET:
		return pass(ctx, EDGE_KERNEL_SOCKET);
	default:
		return ACTION_CONTINUE;
	}
}
