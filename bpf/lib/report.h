/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about packets of flows, on their way through the edge. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "forward.h"
#include "icmp.h"
#include "packet.h"
#include "report_direct.h"
#include "tell.h"
#include "track.h"
#include "tuple.h"
#include "workspace.h"

/* The record, and in other_key its key, of the direction in which an ICMP error about
 * a packet of a flow goes; none if the packet is no such error. */
static __always_inline struct track *reported(struct context *ctx, struct workspace *w)
{
	int half;

	__builtin_memset(&w->quoted, 0, sizeof(w->quoted));
	if (!is_icmp(&w->packet) || w->packet.fragment)
		return 0;
	if (!quote_parse(ctx, &w->packet, &w->quoted))
		return 0;
	tuple_reverse(&w->quoted.tuple, &w->other_key);
	return track_find(&w->other_key, tuple_hash(&w->other_key), &half);
}

/* An ICMP error about a packet of a flow goes to whoever sent that packet. */
static __always_inline int report(struct context *ctx, struct workspace *w)
{
	struct track *track = reported(ctx, w);
	enum routed routed = ROUTED;

	if (!track && !w->wrapping.dsr)
		return report_direct(ctx);
	if (!track || answers_here(track) || (w->wrapping.dsr && !(track->flags & TRACK_LOCAL)))
		return leave_alone(ctx, EDGE_NOT_OURS);
	if (is_redirect(ctx, &w->packet))
		return lose(ctx, w, EDGE_DROP_REDIRECT);
	if (track->dsr)
		return report_of_flow(ctx, w, track);
	if (!(track->flags & (TRACK_LOCAL | TRACK_OUTBOUND))) {
		if (w->packet.hops <= 1)
			return lose(ctx, w, EDGE_DROP_HOPS);
		w->to = track->becomes;
		routed = route(ctx, w, &w->to);
#ifdef EDGE_XDP
		if (left_to_tc(ctx, routed, &w->fib))
			return leave_alone(ctx, EDGE_TO_TC);
#endif
		if (routed == ROUTED_TOO_BIG)
			return lose(ctx, w, EDGE_DROP_TOO_BIG);
	}
	if (icmp_translate(ctx, w, &w->other_key, track))
		return lose(ctx, w, EDGE_DROP_FAULT);
	w->packet.fragment = FRAGMENT_LATER; /* the ends have no ports */
	if (track->flags & (TRACK_LOCAL | TRACK_OUTBOUND))
		return hand_over(ctx, w, EDGE_ICMP);
	return send_on(ctx, w, routed, EDGE_ICMP);
}

/* The same of what a backend of this node reports, or its node of it. */
static __always_inline int report_local(struct context *ctx, struct workspace *w)
{
	struct track *track = reported(ctx, w);

	if (!track || !answers_here(track))
		return packet_pass(ctx);
	if (is_redirect(ctx, &w->packet))
		return lose(ctx, w, EDGE_DROP_REDIRECT);
	if (icmp_translate(ctx, w, &w->other_key, track))
		return lose(ctx, w, EDGE_DROP_FAULT);
	w->packet.fragment = FRAGMENT_LATER; /* the ends have no ports */
	return hand_over(ctx, w, EDGE_ICMP);
}
