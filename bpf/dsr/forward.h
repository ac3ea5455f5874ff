/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows to backends on other nodes that reply directly to the client (DSR). The balancer sees only
 * one direction, so a flow has one entry, which approximates the rest:
 *
 *   - the flow counts as established when the client continues as after a reply: TCP with the
 *     next sequence number, UDP with a second datagram
 *   - a FIN of the client closes the flow like a FIN of either side elsewhere, with the same
 *     timeout (internal/conntrack/timeouts.go); FIN and RST of the backend are not seen. A
 *     connection that the client has closed, and on which only the backend sends, loses its
 *     entry; later packets go to the backend that is selected by the tuple, which is the same
 *     one unless the backends have changed
 *   - so a SYN with the tuple of a live flow may open a new connection. If the backend in the
 *     entry still serves, the backend decides; otherwise no host would */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "conntrack/update.h"
#include "encap/encap.h"
#include "encap/path_mtu.h"
#include "filter/xfrm.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "route/fib.h"
#include "route/fib_cache.h"
#include "route/maps.h"
#include "route/redirect.h"
#include "state/events.h"
#include "state/losses.h"
#include "state/scratch.h"
#include "state/types.h"

/* Returns the DSR format for a client's packets. Only clients outside the cluster that are not on
 * the backend's own node get DSR: replies to others would not pass the device that restores the
 * Service's address. */
static __always_inline enum dsr dsr_of(enum dsr wanted, const struct backend *backend,
				       enum source_class class, const struct address *client)
{
	if (backend->local || class != FROM_OUTSIDE || address_equal(&backend->node, client))
		return DSR_NONE;
	return wanted;
}

/* Looks up the route of a packet that is translated to w->out.to in the format w->encap.dsr. `node`
 * is the backend's node. Returns enum routed. Global function: the verifier checks it once. */
__noinline int dsr_route(struct context *ctx, struct scratch *w, const struct address *node)
{
	__u32 length, learned, device = packet_device(ctx);
	const struct address *own;
	enum routed routed;
	struct fib_entry *cached;

	if (!w)
		return NOT_ROUTED;
	dsr_outer(w, node);
	length = wire_length(ctx, &w->packet);
	if (length)
		length += dsr_overhead(w->encap.dsr, w->packet.is_v6);
	cached = w->encap.dsr == DSR_OPT
			 ? 0
			 : fib_cache_place(&w->encap.outer, FIB_OUTER, routing_flags(ctx));
	if (cached && fib_cache_valid(w, cached, &w->encap.outer, FIB_OUTER, device, length)) {
		fib_cache_use(cached, w);
		w->encap.outer.source = cached->source;
		return ROUTED;
	}
	w->out.fib_cached = 0;
	routed = fib_lookup(ctx, w, length, w->encap.outer.protocol, &w->encap.outer, device, 0);
	if (w->encap.dsr == DSR_OPT || (routed != ROUTED && routed != ROUTED_BY_TC))
		return routed;
	own = outer_source_on(w->out.fib.ifindex, w->packet.is_v6);
	if (!own)
		return ROUTED_WITHOUT_ADDRESS;
	w->encap.outer.source = *own;
	learned = outer_mtu(w);
	if (learned && length > learned) {
		w->out.fib.mtu_result = learned;
		return ROUTED_TOO_BIG;
	}
	if (learned && learned < w->out.fib.mtu_result)
		w->out.fib.mtu_result = learned;
	if (cached && routed == ROUTED && length)
		fib_cache_store(w, cached, &w->encap.outer, FIB_OUTER, device);
	return routed;
}

/* dsr_route with replies to errors; ACTION_CONTINUE if the packet can be sent. ICMP errors get no
 * reply (RFC 1122 section 3.2.2). */
static __always_inline enum action dsr_route_or_reply(struct context *ctx, struct scratch *w,
						      const struct address *node, int may_reply)
{
	enum edge_reason reason = EDGE_DROP_NO_ROUTE;
	enum routed routed;

	if (w->packet.hops <= 1)
		return may_reply ? ttl_exceeded(ctx) : drop(ctx, EDGE_TTL_EXCEEDED);
	routed = dsr_route(ctx, w, node);
#ifdef EDGE_XDP
	if (needs_tc(ctx, routed, &w->out.fib) || (FIXED_HEAD && routed == ROUTED))
		return pass(ctx, EDGE_TO_TC);
#endif
	if (routed == ROUTED || routed == ROUTED_BY_TC)
		return ACTION_CONTINUE;
	if (routed == ROUTED_TOO_BIG && may_reply)
		return too_big(ctx);
	if (not_routed(routed) && may_reply)
		return no_route_to(ctx, &w->out.to.destination, &w->encap.outer.destination,
				   routed);
	if (routed == ROUTED_TOO_BIG)
		reason = EDGE_DROP_TOO_BIG;
	else if (routed == ROUTED_WITHOUT_ADDRESS)
		reason = EDGE_DROP_NO_ADDRESS;
	else if (routed == FORWARDING_OFF)
		reason = EDGE_DROP_FORWARDING;
	if (reason == EDGE_DROP_NO_ADDRESS || reason == EDGE_DROP_NO_ROUTE)
		count_loss(&w->out.to.destination, &w->encap.outer.destination, reason);
	return drop(ctx, reason);
}

static __always_inline enum action dsr_send(struct context *ctx, struct scratch *w,
					    enum edge_reason reason)
{
	if ((is_frame_unfinished(ctx, &w->packet) && finish_frame(ctx)) || encapsulate(ctx, w))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	packet_mark_encapsulated(ctx);
	edge_count(reason);
	if (reason == EDGE_NEW)
		emit_event(ctx, w, reason);
	return packet_forward(ctx, &w->out.fib, w->out.fib_cached);
}

static __always_inline void dsr_to(struct scratch *w, enum dsr dsr, const struct address *backend,
				   __be16 port)
{
	w->encap.dsr = dsr;
	w->out.to = w->packet.tuple;
	address_put(&w->out.to.destination, backend);
	w->out.to.destination_port = port;
}

/* Returns whether an XFRM policy concerns the outer header of a packet. No entry has that header,
 * so each packet asks. */
static __always_inline int xfrm_concerns_outer(const struct scratch *w)
{
	return w->encap.dsr != DSR_OPT && xfrm_concerns(&w->encap.outer);
}

/* Handles the first packet of a flow; w->ct.entry is the new entry, with its `dsr`. */
static __always_inline enum action new_flow_dsr(struct context *ctx, struct scratch *w,
						const struct backend *backend)
{
	enum action action;

	if (ct_is_invalid(w))
		return drop(ctx, EDGE_DROP_INVALID);
	dsr_to(w, w->ct.entry.dsr, &backend->address, backend->port);
	action = dsr_route_or_reply(ctx, w, &backend->node, 1);
	if (action != ACTION_CONTINUE)
		return action;
	if (xfrm_concerns_outer(w))
		return drop(ctx, EDGE_DROP_XFRM);
	if (ct_insert_one_way(w))
		return drop(ctx, EDGE_DROP_INSERT_FAILED);
	return dsr_send(ctx, w, EDGE_NEW);
}

/* Returns the node of a flow's backend. The ID may have been reused since the flow began. */
static __always_inline const struct address *node_of_backend(const struct ct_entry *ct,
							     const struct address *backend)
{
	struct backend *row = backend_lookup(ct->lb.backend);

	return row && address_equal(&row->address, backend) ? &row->node : 0;
}

/* Handles a packet of a known flow; w->out.to is the tuple after translation. */
static __always_inline enum action established_dsr(struct context *ctx, struct scratch *w,
						   struct ct_entry *ct, int unreplied)
{
	__u32 device = packet_device(ctx);
	enum action action;

	barrier_var(device); /* one load: the verifier rejects a computed address in the context */
	w->encap.dsr = ct->dsr;
	action = dsr_route_or_reply(
		ctx, w,
		w->encap.dsr == DSR_GENEVE ? node_of_backend(ct, &w->out.to.destination) : 0, 1);
	if (action != ACTION_CONTINUE)
		return action;
	if (xfrm_concerns_outer(w))
		return drop(ctx, EDGE_DROP_XFRM);
	if (ct->device != device && !dry_run)
		ct_set_device(ct, device);
	ct_update(ctx, w, ct, unreplied);
	return dsr_send(ctx, w, EDGE_ESTABLISHED);
}
