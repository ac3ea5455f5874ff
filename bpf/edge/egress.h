/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that leave the node: replies of its own backends, from the Service's address; and
 * packets of its pods and of the node itself to Services for which neither the socket hooks nor
 * the edge at the pod's device (edge/ingress.h) have selected a backend:
 *
 *   - a connected UDP socket sends to a port that a ClusterIP does not have
 *   - the source of a packet decides (loadBalancerSourceRanges), and the socket had none yet
 *   - pods that have opted out of the socket hooks, and sockets without hooks
 *
 * A backend on another node sees the client's own address, and its replies come back through
 * the edge's ingress. The replies of a backend on this node would bypass all hooks, so its
 * requests get the Service's address as source: the replies to that leave the node by the same
 * device as the requests, and are translated here. */
#pragma once

#include "conntrack/conntrack.h"
#include "conntrack/create.h"
#include "conntrack/types.h"
#include "conntrack/update.h"
#include "dsr/decap.h"
#include "dsr/forward.h"
#include "edge/fragment_ports.h"
#include "edge/icmp_echo.h"
#include "edge/icmp_error.h"
#include "edge/ingress.h"
#include "edge/other_protocol.h"
#include "edge/select.h"
#include "encap/parse.h"
#include "filter/prefilter.h"
#include "filter/source_class.h"
#include "icmp/quote.h"
#include "lb/address.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "route/fib.h"
#include "route/redirect.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* Determines the class of a client on this node whose packet has reached the output device. */
static __always_inline int class_of_local(struct context *ctx, const struct scratch *w,
					  enum source_class *class)
{
	*class = FROM_NODE;
	if (!ctx->ingress_ifindex) /* from a socket in the node's own network namespace */
		return 1;
	*class = class_of(&w->packet.tuple.source);
	return *class == FROM_POD;
}

/* class_of_local for a packet without ports. A pod's packet may have been masqueraded, and no
 * conntrack entry shows that: it then has this node's address. */
static __always_inline int class_without_ports(struct context *ctx, const struct scratch *w,
					       enum source_class *class)
{
	const struct address *own;

	if (class_of_local(ctx, w, class))
		return 1;
	own = address_on(packet_device(ctx), w->packet.is_v6);
	*class = FROM_POD;
	return own && address_equal(own, &w->packet.tuple.source);
}

/* Handles egress packets without ports: replies to pings of pods to Service addresses, refuses
 * other protocols to these, and forwards errors about flows from the Service's address. */
static __always_inline enum action egress_without_ports(struct context *ctx, struct scratch *w)
{
	enum source_class class;
	enum action action;

	if (may_be_for_service(&w->packet) && class_without_ports(ctx, w, &class)) {
		if (class == FROM_POD && is_icmp(&w->packet)) {
			action = icmp_echo(ctx, class);
			if (action != ACTION_CONTINUE)
				return action;
		}
		action = other_protocol(ctx, class);
		if (action != ACTION_CONTINUE)
			return action;
	}
	return icmp_error_local(ctx);
}

/* Forwards a packet of a flow of a client on this node. */
static __always_inline enum action egress_forward(struct context *ctx, struct scratch *w,
						  enum routed routed, enum edge_reason reason)
{
	if (rewrite(ctx, w, 0, reason))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	if (not_routed(routed)) /* the node's own address; or the stack replies with an error */
		return packet_redirect_self(ctx);
	return packet_redirect_neigh(ctx, w->out.fib.ifindex);
}

/* Handles the first packet of a flow of a client on this node. */
static __always_inline enum action new_flow_outbound(struct context *ctx, struct scratch *w)
{
	enum source_class class;
	enum edge_reason reason;
	struct backend *backend;
	enum action action;
	enum routed routed;

	if (!class_of_local(ctx, w, &class))
		return packet_pass(ctx);
	action = edge_select(ctx, class);
	if (action != ACTION_CONTINUE)
		return action;
	backend = backend_lookup(w->ct.entry.lb.backend);
	if (!backend)
		return drop(ctx, EDGE_DROP_NO_BACKEND);
	w->ct.entry.flags = CT_OUTBOUND;
	if (backend->local) {
		w->ct.entry.flags |= CT_LOCAL;
		w->ct.entry.xlate.source = w->packet.tuple.destination;
	}
	routed = route(ctx, w, &w->ct.entry.xlate);
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	if (routed == FORWARDING_OFF)
		return drop(ctx, EDGE_DROP_FORWARDING);
	/* Not the client's own port: the client may also use it to talk to the backend directly. */
	reason = ct_create(ctx, 0);
	if (reason != EDGE_NEW && reason != EDGE_RECOVERED)
		return drop(ctx, reason);
	return egress_forward(ctx, w, routed, reason);
}

/* Handles a packet of a known flow. */
static __always_inline enum action established_outbound(struct context *ctx, struct scratch *w,
							struct ct_entry *ct, int unreplied)
{
	enum routed routed = route(ctx, w, &w->out.to);
	__u8 flags = ct->flags;

	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	if (routed == FORWARDING_OFF)
		return drop(ctx, EDGE_DROP_FORWARDING);
	ct_update(ctx, w, ct, unreplied);
	return egress_forward(ctx, w, routed, flags & CT_REPLY ? EDGE_REPLY : EDGE_ESTABLISHED);
}

/* Handles a reply of a backend on this node. It leaves by the device that the client's packets
 * arrive by: the stack has routed it by the backend's address, which is translated here. */
static __always_inline enum action egress_local_reply(struct context *ctx, struct scratch *w,
						      struct ct_entry *ct, int unreplied)
{
	__u32 device = ct->device;
	enum routed routed;

	if (!device || device == packet_device(ctx))
		return established(ctx, w, ct, unreplied);
	routed = route_reply(ctx, w, &w->out.to, device);
	if (not_routed(routed) || w->out.fib.ifindex == packet_device(ctx))
		return established(ctx, w, ct, unreplied);
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	ct_update(ctx, w, ct, unreplied);
	if (rewrite(ctx, w, 0, EDGE_REPLY))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	return packet_redirect_neigh(ctx, w->out.fib.ifindex);
}

/* Tunnel packets that this node did not encapsulate but is about to send from its own address: if
 * pods are masqueraded, a pod could pose as a balancer. Other nodes' tunnels are passed. */
enum forged_tunnel { TUNNEL_NONE, TUNNEL_FORGED, TUNNEL_FOREIGN };

static __always_inline enum forged_tunnel forged_tunnel(struct context *ctx, struct scratch *w,
							enum parsed parsed)
{
	const struct address *own, *outer;
	__u32 device = packet_device(ctx);

	if (!ctx->ingress_ifindex || !may_be_encapsulated(&w->packet, parsed))
		return TUNNEL_NONE;
	own = address_on(device, w->packet.is_v6);
	outer = outer_source_on(device, w->packet.is_v6);
	if ((!own || !address_equal(own, &w->packet.tuple.source)) &&
	    (!outer || !address_equal(outer, &w->packet.tuple.source)))
		return TUNNEL_NONE;
	switch (decap_inspect(ctx, parsed)) {
	case DECAPSULATED:
	case DECAPSULATED_CONTRADICTION:
		return inner_is_known(ctx, w) ? TUNNEL_FORGED : TUNNEL_FOREIGN;
	case DECAPSULATED_ICMP:
		return w->decap.dsr == DSR_GENEVE ? TUNNEL_FORGED : TUNNEL_FOREIGN;
	case DECAPSULATED_SPOOFED:
		return TUNNEL_FORGED;
	default:
		return TUNNEL_NONE;
	}
}

/* Passes an egress packet that is not for a Service. Counts it like new_flow_outbound; packets of
 * clients elsewhere were counted at ingress. */
static __always_inline enum action egress_pass(struct context *ctx)
{
	if (ctx->ingress_ifindex && !prefilter_miss_of_pod(ctx))
		return packet_pass(ctx);
	return pass(ctx, EDGE_NOT_SERVICE);
}

/* Handles a later fragment with unknown ports, from this node to an address that only a Service
 * has: no host on the network has it. */
static __always_inline enum action egress_orphan_fragment(struct context *ctx,
							  const struct scratch *w)
{
	enum source_class class;

	if (!class_of_local(ctx, w, &class) || !only_service_has(&w->packet.tuple.destination))
		return packet_pass(ctx);
	return drop(ctx, EDGE_DROP_FRAGMENT);
}

static __always_inline enum action edge_egress(struct context *ctx)
{
	struct scratch *w = scratch_get();
	enum parsed parsed;
	struct ct_entry *ct;
	int unreplied;

	if (prefilter_miss(ctx, 1))
		return egress_pass(ctx);
	if (!w)
		return packet_pass(ctx);
	scratch_reset(w);
	w->in.egress = 1;
	parsed = packet_parse(ctx, &w->packet);
	switch (forged_tunnel(ctx, w, parsed)) {
	case TUNNEL_FORGED:
		return drop(ctx, EDGE_DROP_SPOOFED);
	case TUNNEL_FOREIGN:
		return packet_pass(ctx);
	default:
		break;
	}
	if (parsed == PARSED_OTHER)
		return egress_without_ports(ctx, w);
	if (parsed != PARSED)
		return packet_pass(ctx);
	if (w->packet.fragment && !fragment_ports(ctx))
		return egress_orphan_fragment(ctx, w);
	w->in.hash = tuple_hash(&w->packet.tuple);
	ct = ct_lookup(&w->packet.tuple, w->in.hash, &unreplied);
	if (!ct || !ct_read(ct, w->in.hash, &w->out.to))
		return new_flow_outbound(ctx, w);
	if (is_local_reply(ct)) {
		if (ct_syn_unseen(ct, &w->packet)) {
			ct_delete_flow(ct);
			return packet_pass(ctx);
		}
		if (unreplied && !ct_reply_valid(ct)) {
			if (ct_set_port_taken(ct))
				return drop(ctx, EDGE_DROP_OTHER_CONNECTION);
			return packet_pass(ctx);
		}
		return egress_local_reply(ctx, w, ct, unreplied);
	}
	/* Flows of clients elsewhere do not concern egress. */
	if (!(ct->flags & CT_OUTBOUND))
		return packet_pass(ctx);
	if (ct_is_reused(w, ct) || backend_gone(w, ct)) {
		ct_delete_flow(ct);
		return new_flow_outbound(ctx, w);
	}
	if (ct_syn_unseen(ct, &w->packet)) {
		ct_delete_flow(ct);
		return packet_pass(ctx);
	}
	return established_outbound(ctx, w, ct, unreplied);
}
