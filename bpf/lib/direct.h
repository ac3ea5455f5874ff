/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows to backends of other nodes that answer their clients themselves (DSR): the balancer
 * sees one side of them. So there is one record; what it cannot know it does not say:
 *
 *   - the flow is taken for established when the client goes on as one does who has had
 *     an answer: TCP with the very next sequence number, UDP with a second packet
 *   - a FIN of the client is remembered as one of either side is elsewhere, and the
 *     record for as long (internal/edge/sweep.go); of a backend's FIN or RST nothing is
 *     known. A connection that the client has closed and that goes on in the other
 *     direction, without a word of the client, loses its record; after that it gets the
 *     backend that is chosen for its ends: the same one unless backends have changed.
 *   - so a SYN with the ends of a flow that is not over may begin another one. If the
 *     recorded backend serves still it is that one's to judge; else nobody is there.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "encapsulate.h"
#include "forward.h"
#include "frontend.h"
#include "outer_mtu.h"
#include "packet.h"
#include "past.h"
#include "serving.h"
#include "tell.h"
#include "track.h"
#include "track_note.h"
#include "way.h"
#include "workspace.h"

/* How the packets of a client get to a backend. Other clients than those outside, and the
 * backend's own node, would get answers that have not passed the device which gives them
 * the Service's name. */
static __always_inline enum dsr dsr_of(enum dsr wanted, const struct backend *backend,
				       enum source_class class, const struct address *client)
{
	if (backend->local || class != FROM_OUTSIDE || address_equal(&backend->node, client))
		return DSR_NONE;
	return wanted;
}

/* Finds the way of the packet that is to become w->to, by w->dsr; `node` is the backend's.
 * Not static: the verifier looks at it once. Returns enum routed. */
__noinline int dsr_route(struct context *ctx, struct workspace *w, const struct address *node)
{
	__u32 length, learned, device = packet_device(ctx);
	const struct address *own;
	enum routed routed;
	struct way *way;

	if (!w)
		return NOT_ROUTED;
	dsr_outer(w, node);
	length = wire_length(ctx, &w->packet);
	if (length)
		length += dsr_overhead(w->dsr, w->packet.is_v6);
	way = w->dsr == DSR_OPT ? 0 : way_of(&w->outer, WAY_OUTER);
	if (way && way_holds(w, way, &w->outer, WAY_OUTER, device, length)) {
		way_take(way, w);
		w->outer.source = way->source;
		return ROUTED;
	}
	w->remembered = 0;
	routed = route_of(ctx, length, w->packet.is_v6, w->outer.protocol, &w->outer, &w->fib,
			  device, 0);
	if (w->dsr == DSR_OPT || (routed != ROUTED && routed != ROUTED_BY_TC))
		return routed;
	own = outer_source_on(w->fib.ifindex, w->packet.is_v6);
	if (!own)
		return ROUTED_WITHOUT_ADDRESS;
	w->outer.source = *own;
	learned = outer_mtu(w);
	if (learned && length > learned) {
		w->fib.mtu_result = learned;
		return ROUTED_TOO_BIG;
	}
	if (learned && learned < w->fib.mtu_result)
		w->fib.mtu_result = learned;
	if (way && routed == ROUTED && length)
		way_keep(w, way, &w->outer, WAY_OUTER, device);
	return routed;
}

/* The same. Returns 0 if the packet can be sent; else w->result is what becomes of it. An ICMP
 * error is not answered by one (RFC 1122 section 3.2.2). */
static __always_inline int dsr_way(struct context *ctx, struct workspace *w,
				   const struct address *node, int answers)
{
	enum edge_reason reason = EDGE_DROP_NO_ROUTE;
	enum routed routed;

	if (w->packet.hops <= 1) {
		w->result = answers ? out_of_hops(ctx, w) : lose(ctx, w, EDGE_DROP_HOPS);
		return -1;
	}
	routed = dsr_route(ctx, w, node);
#ifdef EDGE_XDP
	if (left_to_tc(ctx, routed, &w->fib) || (FIXED_HEAD && routed == ROUTED)) {
		w->result = leave_alone(ctx, EDGE_TO_TC);
		return -1;
	}
#endif
	if (routed == ROUTED || routed == ROUTED_BY_TC)
		return 0;
	if (routed == ROUTED_TOO_BIG && answers) {
		w->result = too_big(ctx);
		return -1;
	}
	if (routed == ROUTED_TOO_BIG)
		reason = EDGE_DROP_TOO_BIG;
	else if (routed == ROUTED_WITHOUT_ADDRESS)
		reason = EDGE_DROP_NO_ADDRESS;
	else if (routed == FORWARDING_OFF)
		reason = EDGE_DROP_FORWARDING;
	w->result = lose(ctx, w, reason);
	return -1;
}

/* Sends a packet on its way, and counts it. */
static __always_inline int dsr_send(struct context *ctx, struct workspace *w,
				    enum edge_reason reason)
{
	if (trim_fragment(ctx, &w->packet) || encapsulate(ctx, w))
		return lose(ctx, w, EDGE_DROP_FAULT);
	packet_vouch(ctx);
	edge_count(reason);
	if (reason == EDGE_NEW)
		tell(ctx, w, reason);
	return packet_forward(ctx, &w->fib, w->remembered);
}

static __always_inline void dsr_to(struct workspace *w, enum dsr dsr, const struct address *backend,
				   __be16 port)
{
	w->dsr = dsr;
	w->to = w->packet.tuple;
	address_put(&w->to.destination, backend);
	w->to.destination_port = port;
}

/* The first packet of a flow; w->track is the record to be, with its `dsr`. */
static __always_inline int begin_direct(struct context *ctx, struct workspace *w,
					const struct backend *backend)
{
	if (begins_nothing(w))
		return lose(ctx, w, EDGE_DROP_INVALID);
	dsr_to(w, w->track.dsr, &backend->address, backend->port);
	if (dsr_way(ctx, w, &backend->node, 1))
		return w->result;
	if (track_begin_alone(w))
		return lose(ctx, w, EDGE_DROP_NO_RECORD);
	return dsr_send(ctx, w, EDGE_NEW);
}

/* The node of a flow's backend. The id may be another one's since. */
static __always_inline const struct address *node_of(const struct track *track,
						     const struct address *backend)
{
	struct backend *row = backend_lookup(track->backend);

	return row && address_equal(&row->address, backend) ? &row->node : 0;
}

/* A packet of a flow that is known; w->to is what it becomes. */
static __always_inline int follow_direct(struct context *ctx, struct workspace *w,
					 struct track *track, int half)
{
	__u32 device = packet_device(ctx);

	barrier_var(device); /* read once: the verifier takes no address within the context */
	w->dsr = track->dsr;
	if (dsr_way(ctx, w, w->dsr == DSR_GENEVE ? node_of(track, &w->to.destination) : 0, 1))
		return w->result;
	if (track->device != device && !dry_run && track_believes(&w->packet, track, 0))
		track->device = device;
	track_note(w, track, half);
	return dsr_send(ctx, w, EDGE_ESTABLISHED);
}

/* Whether a SYN has the ends of a flow whose backend serves no more: it begins another flow. */
static __always_inline int backend_gone(const struct workspace *w, const struct track *track)
{
	struct destination service, backend;
	__u32 slot = 0;

	if (track->flags & TRACK_REPLY || w->wrapping.dsr ||
	    (w->packet.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return 0;
	destination_set(&service, &w->packet.tuple.destination, w->packet.tuple.destination_port);
	destination_set(&backend, &w->to.destination, w->to.destination_port);
	return !still_serves(&service, w->packet.tuple.protocol, &backend, &slot);
}
