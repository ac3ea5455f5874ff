/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What leaves the node: answers of its own backends, in the Service's name; and what
 * its pods and itself send to Services where the socket hooks have left the choice
 * to the packet:
 *
 *   - a connected UDP socket sends to a port that a ClusterIP does not have
 *   - the source of a packet decides (loadBalancerSourceRanges), and the socket
 *     did not have it yet
 *   - pods that have opted out of the socket hooks, and sockets without hooks
 *
 * A backend elsewhere sees the client's own address, and its answers come back
 * through the edge's ingress. One on this node would answer past every hook, so it
 * is asked in the Service's name: what it sends to that leaves the node by the way
 * that the question took, and is met here.
 */
#pragma once

#include "edge.h"
#include "parse.h"

/* A client of this node, whose packet has come to the device that leads out. */
static __always_inline int class_of_own(struct context *ctx, const struct workspace *w,
					enum source_class *class)
{
	*class = FROM_NODE;
	if (!ctx->ingress_ifindex) /* sent by a socket of the node's own namespace */
		return 1;
	*class = class_of(&w->packet.tuple.source);
	return *class == FROM_POD;
}

/* The same of a packet without ports. A pod's may have been masqueraded, which no flow tells: it
 * has the address that this node sends with. */
static __always_inline int class_without_ports(struct context *ctx, const struct workspace *w,
					       enum source_class *class)
{
	const struct address *own;

	if (class_of_own(ctx, w, class))
		return 1;
	own = address_on(packet_device(ctx), w->packet.is_v6);
	*class = FROM_POD;
	return own && address_equal(own, &w->packet.tuple.source);
}

/* What leaves and has no ports: pings of pods to addresses of Services are answered, other
 * protocols to these are refused, and errors about flows go on in the Service's name. */
static __always_inline int leave_without_ports(struct context *ctx, struct workspace *w)
{
	enum source_class class;
	int result = 0;

	if (may_ask_services(&w->packet) && class_without_ports(ctx, w, &class)) {
		if (class == FROM_POD && is_icmp(&w->packet) && echo(ctx, class, &result))
			return result;
		if (other_protocol(ctx, class, &result))
			return result;
	}
	return report_local(ctx, w);
}

/* Takes a packet of a flow of this node's clients on its way. */
static __always_inline int take_on(struct context *ctx, struct workspace *w, enum routed routed,
				   enum edge_reason reason)
{
	if (change(ctx, w, 0, reason))
		return lose(ctx, w, EDGE_DROP_FAULT);
	if (routed ==
	    NOT_ROUTED) /* to this node itself: the kernel's look-up says so in this way */
		return packet_turn_in(ctx);
	return packet_leave(ctx, w->fib.ifindex);
}

/* The first packet of a flow of this node's clients. */
static __always_inline int begin_outbound(struct context *ctx, struct workspace *w)
{
	enum source_class class;
	enum edge_reason reason;
	struct backend *backend;
	enum routed routed;
	int result = 0;

	if (!class_of_own(ctx, w, &class))
		return packet_pass(ctx);
	backend = choose(ctx, w, class, &result);
	if (!backend)
		return result;
	w->track.flags = TRACK_OUTBOUND;
	if (backend->local) {
		w->track.flags |= TRACK_LOCAL;
		w->track.becomes.source = w->packet.tuple.destination;
	}
	routed = route(ctx, w, &w->track.becomes);
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	if (routed == FORWARDING_OFF)
		return lose(ctx, w, EDGE_DROP_FORWARDING);
	/* Not with the client's own port: it may talk to the backend directly, too. */
	reason = begin_flow(0);
	if (reason != EDGE_NEW && reason != EDGE_ADOPTED)
		return lose(ctx, w, reason);
	return take_on(ctx, w, routed, reason);
}

/* A packet of a flow that is known. */
static __always_inline int follow_outbound(struct context *ctx, struct workspace *w,
					   struct track *track, int half)
{
	enum routed routed = route(ctx, w, &w->to);
	__u8 flags = track->flags;

	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	if (routed == FORWARDING_OFF)
		return lose(ctx, w, EDGE_DROP_FORWARDING);
	track_note(w, track, half);
	return take_on(ctx, w, routed, flags & TRACK_REPLY ? EDGE_REPLY : EDGE_ESTABLISHED);
}

/* An answer of a backend of this node leaves by the device that the client's packets
 * come by. The stack has chosen by the backend's address, which is not the one that it
 * leaves with. */
static __always_inline int answer_local(struct context *ctx, struct workspace *w,
					struct track *track, int half)
{
	__u32 device = track->device;
	enum routed routed;

	if (!device || device == packet_device(ctx))
		return follow(ctx, w, track, half);
	routed = route_back(ctx, w, &w->to, device);
	if (not_routed(routed) || w->fib.ifindex == packet_device(ctx))
		return follow(ctx, w, track, half);
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	track_note(w, track, half);
	if (change(ctx, w, 0, EDGE_REPLY))
		return lose(ctx, w, EDGE_DROP_FAULT);
	return packet_leave(ctx, w->fib.ifindex);
}

/* What somebody else has encapsulated, and this node is about to send in its own name: where
 * pods' packets are masqueraded, a pod would pass for a balancer. Other people's tunnels go on. */
enum pretence { PRETENDS_NOTHING, PRETENDS, OF_OTHERS };

static __always_inline enum pretence pretence(struct context *ctx, struct workspace *w,
					      enum parsed parsed)
{
	const struct address *own, *outer;
	__u32 device = packet_device(ctx);

	if (!ctx->ingress_ifindex || !may_be_wrapped(&w->packet, parsed))
		return PRETENDS_NOTHING;
	own = address_on(device, w->packet.is_v6);
	outer = outer_source_on(device, w->packet.is_v6);
	if ((!own || !address_equal(own, &w->packet.tuple.source)) &&
	    (!outer || !address_equal(outer, &w->packet.tuple.source)))
		return PRETENDS_NOTHING;
	switch (decapsulate(ctx, parsed)) {
	case DECAPSULATED:
	case DECAPSULATED_CONTRADICTION:
		return concerns(ctx, w) ? PRETENDS : OF_OTHERS;
	case DECAPSULATED_ICMP:
		return w->wrapping.dsr == DSR_GENEVE ? PRETENDS : OF_OTHERS;
	case DECAPSULATED_SPOOFED:
		return PRETENDS;
	default:
		return PRETENDS_NOTHING;
	}
}

/* What leaves and is none of ours: counted as begin_outbound has it. What has come from
 * elsewhere has been met as it came. */
static __always_inline int leave_outbound(struct context *ctx)
{
	if (ctx->ingress_ifindex && !pod_is_shut_out(ctx))
		return packet_pass(ctx);
	return leave_alone(ctx, EDGE_NOT_OURS);
}

/* A later fragment of this node's own whose ports are not known, on its way to an address that
 * only a Service has: nobody on the wire has it. */
static __always_inline int stray_outbound(struct context *ctx, const struct workspace *w)
{
	enum source_class class;

	if (!class_of_own(ctx, w, &class) || !service_alone_has(&w->packet.tuple.destination))
		return packet_pass(ctx);
	return lose(ctx, w, EDGE_DROP_FRAGMENT);
}

static __always_inline int edge_egress(struct context *ctx)
{
	struct workspace *w = workspace_get();
	enum parsed parsed;
	struct track *track;
	int half;

	if (shut_out(ctx, 1))
		return leave_outbound(ctx);
	if (!w)
		return packet_pass(ctx);
	workspace_clear(w);
	w->leaving = 1;
	parsed = packet_parse(ctx, &w->packet);
	switch (pretence(ctx, w, parsed)) {
	case PRETENDS:
		return lose(ctx, w, EDGE_DROP_SPOOFED);
	case OF_OTHERS:
		return packet_pass(ctx);
	default:
		break;
	}
	if (parsed == PARSED_OTHER)
		return leave_without_ports(ctx, w);
	if (parsed != PARSED)
		return packet_pass(ctx);
	if (w->packet.fragment && !fragment_ports(ctx))
		return stray_outbound(ctx, w);
	w->hash = tuple_hash(&w->packet.tuple);
	track = track_find(&w->packet.tuple, w->hash, &half);
	if (!track || !track_read(track, w->hash, &w->to))
		return begin_outbound(ctx, w);
	if (answers_here(track)) {
		if (track_astray(track, &w->packet)) {
			track_end(track);
			return packet_pass(ctx);
		}
		if (half && !track_answers(track))
			return packet_pass(ctx);
		return answer_local(ctx, w, track, half);
	}
	/* A flow of clients elsewhere has nothing to do with what leaves. */
	if (!(track->flags & TRACK_OUTBOUND))
		return packet_pass(ctx);
	if (track_over(w, track) || backend_gone(w, track)) {
		track_end(track);
		return begin_outbound(ctx, w);
	}
	if (track_astray(track, &w->packet)) {
		track_end(track);
		return packet_pass(ctx);
	}
	return follow_outbound(ctx, w, track, half);
}
