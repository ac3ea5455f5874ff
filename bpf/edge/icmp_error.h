/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about packets of flows. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "dsr/icmp.h"
#include "icmp/quote.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "route/fib.h"
#include "route/redirect.h"
#include "state/events.h"
#include "state/losses.h"
#include "state/scratch.h"
#include "state/types.h"

/* Returns the entry of the direction in which an ICMP error about a packet of a flow travels, and
 * sets w->ct.reverse_key to its key; 0 for other packets. */
static __always_inline struct ct_entry *icmp_error_flow(struct context *ctx, struct scratch *w)
{
	int unreplied;

	__builtin_memset(&w->quoted, 0, sizeof(w->quoted));
	if (!is_icmp(&w->packet) || w->packet.fragment)
		return 0;
	if (!quote_parse(ctx, &w->packet, &w->quoted))
		return 0;
	tuple_reverse(&w->quoted.tuple, &w->ct.reverse_key);
	return ct_lookup(&w->ct.reverse_key, tuple_hash(&w->ct.reverse_key), &unreplied);
}

/* Translates and forwards an ICMP error to the sender of the quoted packet; ACTION_CONTINUE if it
 * is about no flow. Global function: the verifier checks it once. */
__noinline enum action icmp_error_forward(struct context *ctx)
{
	struct scratch *w = scratch_get();
	enum routed routed = ROUTED;
	struct ct_entry *ct;

	if (!w)
		return packet_drop(ctx);
	ct = icmp_error_flow(ctx, w);
	if (!ct && !w->decap.dsr)
		return ACTION_CONTINUE;
	if (!ct || is_local_reply(ct) || (w->decap.dsr && !(ct->flags & CT_LOCAL)))
		return pass(ctx, EDGE_NOT_SERVICE);
	if (is_redirect(ctx, &w->packet))
		return drop(ctx, EDGE_DROP_REDIRECT);
	if (ct->dsr)
		return icmp_error_of_flow(ctx, w, ct);
	if (!(ct->flags & (CT_LOCAL | CT_OUTBOUND))) {
		if (w->packet.hops <= 1)
			return drop(ctx, EDGE_TTL_EXCEEDED);
		w->out.to = ct->xlate;
		routed = route(ctx, w, &w->out.to);
#ifdef EDGE_XDP
		if (needs_tc(ctx, routed, &w->out.fib))
			return pass(ctx, EDGE_TO_TC);
#endif
		if (routed == ROUTED_TOO_BIG)
			return drop(ctx, EDGE_DROP_TOO_BIG);
		if (not_routed(routed) && routed != FORWARDING_OFF && !(ct->flags & CT_REPLY))
			count_loss(&w->out.to.destination, &w->out.to.destination,
				   EDGE_DROP_NO_ROUTE);
	}
	if (icmp_translate(ctx, w, &w->ct.reverse_key, ct))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	w->packet.fragment = FRAGMENT_LATER; /* no ports to rewrite */
	if (ct->flags & (CT_LOCAL | CT_OUTBOUND))
		return deliver_local(ctx, w, EDGE_ICMP);
	return forward(ctx, w, routed, EDGE_ICMP);
}

/* icmp_error_forward for an error from a backend on this node, or from the node about it. Global
 * function: the verifier checks it once. */
__noinline enum action icmp_error_local(struct context *ctx)
{
	struct scratch *w = scratch_get();
	struct ct_entry *ct;

	if (!w)
		return packet_drop(ctx);
	ct = icmp_error_flow(ctx, w);
	if (!ct || !is_local_reply(ct))
		return packet_pass(ctx);
	if (is_redirect(ctx, &w->packet))
		return drop(ctx, EDGE_DROP_REDIRECT);
	if (icmp_translate(ctx, w, &w->ct.reverse_key, ct))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	w->packet.fragment = FRAGMENT_LATER; /* no ports to rewrite */
	return deliver_local(ctx, w, EDGE_ICMP);
}
