/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a packet that comes to the node: one path for XDP and tc and for
 * both families. One of a client goes to a backend elsewhere in the node's name (SNAT) or
 * encapsulated (DSR, direct.h), or to one of this node as it is; one of a backend elsewhere
 * goes the way back. What leaves the node is outbound.h's. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "begin.h"
#include "choose.h"
#include "client.h"
#include "decapsulate.h"
#include "direct.h"
#include "door.h"
#include "echo.h"
#include "edge_tables.h"
#include "forward.h"
#include "fragment_ports.h"
#include "frontend.h"
#include "other_protocol.h"
#include "packet.h"
#include "report.h"
#include "tables.h"
#include "tell.h"
#include "track.h"
#include "track_note.h"
#include "tuple.h"
#include "untracked.h"
#include "workspace.h"

/* The first packet of a flow to a backend of another node. */
static __always_inline int begin_remote(struct context *ctx, struct workspace *w)
{
	enum edge_reason reason;
	enum routed routed;

	if (w->packet.hops <= 1)
		return out_of_hops(ctx, w);
	routed = route_own(ctx, w);
#ifdef EDGE_XDP
	if (left_to_tc(ctx, routed, &w->fib))
		return leave_alone(ctx, EDGE_TO_TC);
#endif
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	if (not_routed(routed))
		return lose(ctx, w, why_not_routed(routed));
	if (address_is_unspecified(&w->track.becomes.source))
		return lose(ctx, w, EDGE_DROP_NO_ADDRESS);
	reason = begin_flow(0);
	if (reason != EDGE_NEW && reason != EDGE_ADOPTED)
		return lose(ctx, w, reason);
	return send_on(ctx, w, routed, reason);
}

#ifndef EDGE_XDP
/* Whether only pods of this node are behind the device that a packet has come by. */
static __always_inline int pods_behind(struct context *ctx)
{
	__u32 index = packet_device(ctx);
	struct edge_device *device = bpf_map_lookup_elem(&edge_devices, &index);

	return device && device->pods;
}

/* Whether a packet comes from a pod of this node and leaves the node, or is none of a
 * Service: outbound.h meets it on its way out. What pods ask of the node's own
 * addresses does not leave. */
static __always_inline int met_later(struct context *ctx, struct workspace *w)
{
	const struct tuple *asked = &w->packet.tuple;
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};

	if (!pods_behind(ctx))
		return 0;
	return !frontend_at(&key) || !not_routed(route(ctx, w, asked));
}

/* A pod that is its own backend would not answer itself: the Service asks it (R19). */
static __always_inline int begin_hairpin(struct context *ctx, struct workspace *w)
{
	enum edge_reason reason;
	enum routed routed;

	if (w->packet.hops <= 1)
		return out_of_hops(ctx, w);
	w->track.becomes.source = w->packet.tuple.destination;
	routed = route(ctx, w, &w->track.becomes);
	if (not_routed(routed))
		return lose(ctx, w, why_not_routed(routed));
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	reason = begin_flow(0);
	if (reason != EDGE_NEW && reason != EDGE_ADOPTED)
		return lose(ctx, w, reason);
	return send_on(ctx, w, routed, reason);
}
#endif

/* A packet of a protocol that no Service has, to an address that Services may have. */
static __always_inline int refused_protocol(struct context *ctx, const struct workspace *w,
					    int *result)
{
	if (w->wrapping.dsr || !may_ask_services(&w->packet))
		return 0;
#ifndef EDGE_XDP
	if (pods_behind(ctx)) /* outbound.h meets it on its way out */
		return 0;
#endif
	return other_protocol(ctx, SOURCE_CLASSES, result);
}

/* Whether a client keeps its own port at a backend of this node, if no other flow has it there.
 * Pods and nodes talk to pods directly as well, which nobody sees: the answers of TCP tell which
 * connection they are of (track_answers), those of UDP do not. */
static __always_inline int own_port(const struct workspace *w, enum source_class class)
{
	const struct address *source = &w->packet.tuple.source;

	return w->packet.tuple.protocol != IPPROTO_UDP ||
	       (class == FROM_OUTSIDE && !balancer_of(source));
}

/* What comes from outside of the node, or from its pods. */
static __always_inline int begin(struct context *ctx, struct workspace *w)
{
	enum source_class class = class_of(&w->packet.tuple.source);
	enum edge_reason reason;
	struct backend *backend;
	int result = 0;

	/* The stack knows such forgeries, and an answer would go to somebody else. */
	if (address_is_no_source(&w->packet.tuple.source))
		return leave_alone(ctx, EDGE_DROP_MALFORMED);
#ifndef EDGE_XDP
	if (!w->wrapping.dsr && met_later(ctx, w))
		return leave_alone(ctx, EDGE_NOT_OURS);
#endif
	backend = choose(ctx, w, class, &result);
	if (!backend)
		return result;
	if (w->track.dsr)
		return begin_direct(ctx, w, backend);
	if (!backend->local)
		return begin_remote(ctx, w);
#ifndef EDGE_XDP
	if (!w->wrapping.dsr && address_equal(&backend->address, &w->packet.tuple.source))
		return begin_hairpin(ctx, w);
#endif
	w->track.flags |= TRACK_LOCAL;
	if (w->wrapping.dsr) {
		w->track.flags |= TRACK_DSR;
		w->track.device = 0;
	}
	reason = begin_flow(own_port(w, class));
	if (reason != EDGE_NEW && reason != EDGE_ADOPTED)
		return lose(ctx, w, reason);
	return hand_over(ctx, w, reason);
}

/* The device that a client's packets come by: not known of what a balancer has sent. */
static __always_inline __u32 client_device(struct context *ctx, const struct workspace *w)
{
	return w->wrapping.dsr ? 0 : packet_device(ctx);
}

/* A packet of a flow that is known. */
static __always_inline int follow(struct context *ctx, struct workspace *w, struct track *track,
				  int half)
{
	enum edge_reason reason = track->flags & TRACK_REPLY ? EDGE_REPLY : EDGE_ESTABLISHED;
	struct packet *p = &w->packet;
	__u8 flags = track->flags;
	enum routed routed = ROUTED;

	if (!(flags & (TRACK_LOCAL | TRACK_OUTBOUND))) {
		if (p->hops <= 1)
			return out_of_hops(ctx, w);
		if (flags & TRACK_REPLY)
			routed = route_back(ctx, w, &w->to, track->device);
		else
			routed = route(ctx, w, &w->to);
#ifdef EDGE_XDP
		/* tc comes to the same flow, and notes the packet. */
		if (left_to_tc(ctx, routed, &w->fib))
			return leave_alone(ctx, EDGE_TO_TC);
#endif
		if (routed == ROUTED_TOO_BIG)
			return too_big(ctx);
	}
	if (!(flags & (TRACK_REPLY | TRACK_OUTBOUND | TRACK_DSR)) &&
	    track->device != client_device(ctx, w) && !dry_run)
		track_move(track, client_device(ctx, w));
	track_note(w, track, half);
	if (flags & (TRACK_LOCAL | TRACK_OUTBOUND))
		return hand_over(ctx, w, reason);
	return send_on(ctx, w, routed, reason);
}

/* Whether a packet that a pod has sent is one of a flow that is met where it leaves the
 * node. Of those that this node's clients began only answers from elsewhere come in. */
static __always_inline int followed_later(const struct track *track)
{
	__u8 flags = track->flags & ~TRACK_FIN;

	return answers_here(track) ||
	       (flags & TRACK_OUTBOUND && flags != (TRACK_OUTBOUND | TRACK_REPLY));
}

static __always_inline int edge_ingress(struct context *ctx)
{
	struct workspace *w = workspace_get();
	struct backend *backend;
	enum parsed parsed;
	struct track *track;
	int half, result = 0;

	if (!w)
		return packet_pass(ctx);
	if ((!dry_run && !packet_ours(ctx, &w->own)) || shut_out(ctx, 0))
		return leave_alone(ctx, EDGE_NOT_OURS);
	workspace_clear(w);
	parsed = packet_parse(ctx, &w->packet);
	if (may_be_wrapped(&w->packet, parsed) && !unwrap(ctx, w, &parsed, &result))
		return result;
	switch (parsed) {
	case PARSED_OTHER:
#ifdef EDGE_XDP
		if (packet_priority_tagged(ctx))
			return leave_alone(ctx, EDGE_TO_TC);
#endif
		if (!w->wrapping.dsr && is_icmp(&w->packet) && echo(ctx, SOURCE_CLASSES, &result))
			return result;
		if (refused_protocol(ctx, w, &result))
			return result;
		return report(ctx, w);
	case PARSED_MALFORMED:
		return leave_alone(ctx, EDGE_DROP_MALFORMED);
	default:
		break;
	}
	if (w->packet.fragment && !fragment_ports(ctx))
		return stray(ctx, w);
	w->hash = tuple_hash(&w->packet.tuple);
	if (!w->wrapping.dsr && some_untracked(&w->packet)) {
		backend = backend_lookup(untracked(w->hash));
		if (backend)
			return send_untracked(ctx, w, backend);
	}
	track = track_find(&w->packet.tuple, w->hash, &half);
	if (track && track_read(track, w->hash, &w->to)) {
		if (followed_later(track))
			return leave_alone(ctx, EDGE_NOT_OURS);
		if (track_astray(track, &w->packet)) {
			track_end(track);
			return leave_alone(ctx, EDGE_NOT_OURS);
		}
		if (half && !w->wrapping.dsr && some_untracked(&w->packet)) {
			backend = backend_lookup(pretended(w, track));
			if (backend)
				return send_untracked(ctx, w, backend);
		}
		if (!track_over(w, track) && !backend_gone(w, track) && !yields(w, track) &&
		    !told_over(ctx, w))
			return track->dsr ? follow_direct(ctx, w, track, half)
					  : follow(ctx, w, track, half);
	} else {
		track = 0;
	}
	if (w->wrapping.dsr && !told_backend(ctx, &result))
		return result;
	if (track)
		track_end(track);
	return begin(ctx, w);
}
