/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that arrive at the node: one code path for XDP and tc, and for both families. A client's
 * packet goes to a backend on another node from this node's address (SNAT) or encapsulated (DSR,
 * dsr/forward.h), or to a backend on this node unchanged; replies of backends on other nodes go
 * back to the client. edge/egress.h handles packets that leave the node. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/create.h"
#include "conntrack/types.h"
#include "conntrack/update.h"
#include "dsr/decap.h"
#include "dsr/forward.h"
#include "dsr/stateless.h"
#include "edge/fragment_ports.h"
#include "edge/icmp_echo.h"
#include "edge/icmp_error.h"
#include "edge/kernel_flow.h"
#include "edge/other_protocol.h"
#include "edge/select.h"
#include "edge/source.h"
#include "encap/parse.h"
#include "filter/prefilter.h"
#include "filter/source_class.h"
#include "filter/xfrm.h"
#include "icmp/message_sum.h"
#include "icmp/quote.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/serving.h"
#include "lb/types.h"
#include "packet/device.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "route/fib.h"
#include "route/redirect.h"
#include "state/events.h"
#include "state/losses.h"
#include "state/scratch.h"
#include "state/types.h"

/* Handles the first packet of a flow to a backend on another node. */
static __always_inline enum action new_flow_remote(struct context *ctx, struct scratch *w)
{
	const struct address *backend = &w->ct.entry.xlate.destination;
	enum edge_reason reason;
	enum routed routed;

	routed = route_snat(ctx, w);
	if (not_routed(routed))
		return no_route_to(ctx, backend, backend, routed);
	if (w->packet.hops <= 1)
		return ttl_exceeded(ctx);
#ifdef EDGE_XDP
	if (needs_tc(ctx, routed, &w->out.fib))
		return pass(ctx, EDGE_TO_TC);
#endif
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	if (address_is_unspecified(&w->ct.entry.xlate.source)) {
		count_loss(backend, backend, EDGE_DROP_NO_ADDRESS);
		return drop(ctx, EDGE_DROP_NO_ADDRESS);
	}
	if (xfrm_concerns(&w->ct.entry.xlate)) /* from the node's address */
		return drop(ctx, EDGE_DROP_XFRM);
	reason = ct_create(ctx, 0);
	if (reason == EDGE_DROP_NO_PORT)
		count_loss(backend, backend, reason);
	if (reason != EDGE_NEW && reason != EDGE_RECOVERED)
		return drop(ctx, reason);
	return forward(ctx, w, routed, reason);
}

#ifndef EDGE_XDP
/* Returns whether only pods of this node are behind the input device. */
static __always_inline int is_pod_device(struct context *ctx)
{
	__u32 index = packet_device(ctx);
	struct edge_device *device = bpf_map_lookup_elem(&edge_devices, &index);

	return device && device->pods;
}

/* Where a pod's packet to an address is handled. */
enum pod_path_to {
	TO_NO_SERVICE, /* edge/egress.h, if anywhere */
	TO_NODE,       /* here, as from outside: pods are masqueraded, or the sender is no pod */
	TO_UPLINK,     /* here: the stack forwards it to the backend from the pod's own address */
};

static __always_inline enum pod_path_to pod_path_to(struct context *ctx, struct scratch *w,
						    enum source_class class)
{
	const struct tuple *asked = &w->packet.tuple;
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};

	struct frontend *frontend = frontend_at(&key);

	if (!frontend)
		return TO_NO_SERVICE;
	/* No packet to an address of the node's own leaves the node. */
	if (class != FROM_POD)
		return not_routed(route(ctx, w, asked)) ? TO_NODE : TO_NO_SERVICE;
	return frontend->flags & FRONTEND_BY_PACKET ? TO_NODE : TO_UPLINK;
}

/* Returns whether the backend is the client, or the route to it leads back to the client's device,
 * one of pods. */
static __always_inline int is_hairpin(struct context *ctx, struct scratch *w, int from_pod)
{
	enum routed routed;

	if (address_equal(&w->ct.entry.xlate.destination, &w->packet.tuple.source))
		return 1;
	if (!from_pod)
		return 0;
	routed = route(ctx, w, &w->ct.entry.xlate);
	return (routed == ROUTED || routed == ROUTED_BY_TC) &&
	       w->out.fib.ifindex == packet_device(ctx);
}

/* Handles the first packet of a pod to itself, or to a pod behind the same bridge. The source
 * becomes the Service's (R19): a pod does not reply to its own address, and a reply that the bridge
 * forwards passes no hook. */
static __always_inline enum action new_flow_hairpin(struct context *ctx, struct scratch *w)
{
	enum edge_reason reason;
	enum routed routed;

	w->ct.entry.xlate.source = w->packet.tuple.destination;
	routed = route(ctx, w, &w->ct.entry.xlate);
	if (not_routed(routed))
		return no_route_to(ctx, &w->ct.entry.xlate.destination,
				   &w->ct.entry.xlate.destination, routed);
	if (w->packet.hops <= 1)
		return ttl_exceeded(ctx);
	if (routed == ROUTED_TOO_BIG)
		return too_big(ctx);
	reason = ct_create(ctx, 0);
	if (reason != EDGE_NEW && reason != EDGE_RECOVERED)
		return drop(ctx, reason);
	return forward(ctx, w, routed, reason);
}
#endif

/* Handles a packet of a protocol that no Service has, to an address that a Service may have. */
static __always_inline enum action reject_other_protocol(struct context *ctx,
							 const struct scratch *w)
{
	if (w->decap.dsr || !may_be_for_service(&w->packet))
		return ACTION_CONTINUE;
#ifndef EDGE_XDP
	if (is_pod_device(ctx)) /* edge/egress.h handles it */
		return ACTION_CONTINUE;
#endif
	return other_protocol(ctx, SOURCE_CLASSES);
}

/* Returns whether a client may keep its own port at a backend on this node, if no other flow uses
 * it there. Pods and nodes also talk to pods directly, which is not tracked: replies of TCP show
 * which connection they belong to (ct_reply_valid), those of UDP do not. If such a reply has shown
 * that the backend has another connection from this port, the client's next SYN gets another. */
static __always_inline int keeps_client_port(const struct scratch *w, enum source_class class)
{
	const struct address *source = &w->packet.tuple.source;

	if (w->in.port_taken)
		return 0;
	return w->packet.tuple.protocol != IPPROTO_UDP ||
	       (class == FROM_OUTSIDE && !balancer_of(source));
}

/* Answers the first packet of a flow to a backend on this node if its TTL is used up and the node
 * would forward it, so that no entry is created. What goes to an address of the node itself is not
 * forwarded. */
static __always_inline enum action expired_local(struct context *ctx, struct scratch *w)
{
	enum routed routed;

	if (w->packet.hops > 1 || w->decap.dsr)
		return ACTION_CONTINUE;
	routed = route(ctx, w, &w->ct.entry.xlate);
	if (routed == NOT_ROUTED)
		return ACTION_CONTINUE;
	if (not_routed(routed))
		return no_route_to(ctx, &w->ct.entry.xlate.destination,
				   &w->ct.entry.xlate.destination, routed);
	return ttl_exceeded(ctx);
}

/* Handles the first packet of a flow from outside the node, or from its pods. */
static __always_inline enum action new_flow(struct context *ctx, struct scratch *w)
{
	enum source_class class = class_of(&w->packet.tuple.source);
	enum edge_reason reason;
	struct backend *backend;
	enum action action;
#ifndef EDGE_XDP
	int from_pod = !w->decap.dsr && is_pod_device(ctx);
	enum pod_path_to path = TO_NODE;
#endif
	int by_stack;

	/* The stack drops such forgeries, and a reply would go to a third party. */
	if (address_is_no_source(&w->packet.tuple.source))
		return pass(ctx, EDGE_MALFORMED);
#ifndef EDGE_XDP
	if (from_pod)
		path = pod_path_to(ctx, w, class);
	if (path == TO_NO_SERVICE)
		return pass(ctx, EDGE_NOT_SERVICE);
#endif
	action = edge_select(ctx, class);
	if (action != ACTION_CONTINUE)
		return action;
	backend = backend_lookup(w->ct.entry.lb.backend);
	if (!backend)
		return drop(ctx, EDGE_DROP_NO_BACKEND);
	if (!w->decap.dsr && address_is_link_local(&w->packet.tuple.source))
		return beyond_scope(ctx);
	if (!w->decap.dsr && !segment_sum_is_right(ctx))
		return pass(ctx, EDGE_MALFORMED);
	by_stack = backend->local;
#ifndef EDGE_XDP
	/* The reply comes back through this node, to the pod's device. */
	by_stack |= path == TO_UPLINK;
#endif
	if (w->ct.entry.dsr)
		return new_flow_dsr(ctx, w, backend);
	if (!by_stack)
		return new_flow_remote(ctx, w);
#ifndef EDGE_XDP
	if (!w->decap.dsr && is_hairpin(ctx, w, from_pod))
		return new_flow_hairpin(ctx, w);
#endif
	action = expired_local(ctx, w);
	if (action != ACTION_CONTINUE)
		return action;
	w->ct.entry.flags |= CT_LOCAL;
	if (w->decap.dsr) {
		w->ct.entry.flags |= CT_DSR;
		w->ct.entry.device = 0;
	}
	reason = ct_create(ctx, keeps_client_port(w, class));
	if (reason != EDGE_NEW && reason != EDGE_RECOVERED)
		return drop(ctx, reason);
	return deliver_local(ctx, w, reason);
}

/* Returns the device by which a client's packets arrive; 0, unknown, if a balancer sent them. */
static __always_inline __u32 client_device(struct context *ctx, const struct scratch *w)
{
	return w->decap.dsr ? 0 : packet_device(ctx);
}

/* Handles a packet of a known flow. */
static __always_inline enum action established(struct context *ctx, struct scratch *w,
					       struct ct_entry *ct, int unreplied)
{
	enum edge_reason reason = ct->flags & CT_REPLY ? EDGE_REPLY : EDGE_ESTABLISHED;
	struct packet *p = &w->packet;
	__u8 flags = ct->flags;
	enum routed routed = ROUTED;

	if (!(flags & (CT_LOCAL | CT_OUTBOUND))) {
		if (flags & CT_REPLY)
			routed = route_reply(ctx, w, &w->out.to, ct->device);
		else
			routed = route(ctx, w, &w->out.to);
		if (not_routed(routed) && !(flags & CT_REPLY))
			return no_route_to(ctx, &w->out.to.destination, &w->out.to.destination,
					   routed);
		if (p->hops <= 1)
			return not_routed(routed) ? no_route(ctx, routed) : ttl_exceeded(ctx);
#ifdef EDGE_XDP
		/* tc finds the same flow, and updates it. */
		if (needs_tc(ctx, routed, &w->out.fib))
			return pass(ctx, EDGE_TO_TC);
#endif
		if (routed == ROUTED_TOO_BIG)
			return too_big(ctx);
	}
	if (!(flags & (CT_REPLY | CT_OUTBOUND | CT_DSR)) && ct->device != client_device(ctx, w) &&
	    !dry_run)
		ct_set_device(ct, client_device(ctx, w));
	ct_update(ctx, w, ct, unreplied);
	if (flags & (CT_LOCAL | CT_OUTBOUND))
		return deliver_local(ctx, w, reason);
	return forward(ctx, w, routed, reason);
}

/* Returns whether egress handles the flow of a pod's packet. Of flows from clients of this node
 * only replies from elsewhere arrive at ingress. */
static __always_inline int flow_handled_at_egress(const struct ct_entry *ct)
{
	__u8 flags = ct->flags & ~CT_FIN;

	return is_local_reply(ct) || (flags & CT_OUTBOUND && flags != (CT_OUTBOUND | CT_REPLY));
}

/* Returns whether a SYN has the tuple of a flow whose backend no longer serves: it opens a new
 * flow. */
static __always_inline int backend_gone(const struct scratch *w, const struct ct_entry *ct)
{
	struct destination service, backend;
	__u32 slot = 0;

	if (ct->flags & CT_REPLY || w->decap.dsr || !tcp_opens(&w->packet))
		return 0;
	destination_set(&service, &w->packet.tuple.destination, w->packet.tuple.destination_port);
	destination_set(&backend, &w->out.to.destination, w->out.to.destination_port);
	return !still_serves(&service, w->packet.tuple.protocol, &backend, &slot);
}

/* Sends a packet to the backend of its slot. Only the node's own ports are shared with the kernel's
 * flows, and such a flow has no first packet here: every packet that is no SYN asks. Sources are
 * validated at the SYN: no other packet opens a connection. */
static __always_inline enum action send_untracked(struct context *ctx, struct scratch *w,
						  const struct backend *backend)
{
	enum action action = w->in.node_port ? kernel_flow_pass(ctx, w) : ACTION_CONTINUE;

	if (tcp_opens(&w->packet) && !source_is_valid(ctx, w))
		return drop(ctx, EDGE_DROP_REVERSE_PATH);
	return action == ACTION_CONTINUE ? forward_untracked(ctx, w, backend) : action;
}

/* What a packet of TCP or UDP belongs to at ingress. */
enum flow_class {
	FLOW_NEW,	/* no flow */
	FLOW_STALE,	/* a flow that has ended, or has to choose its backend again */
	FLOW_TRACKED,	/* a flow that goes on */
	FLOW_UNTRACKED, /* a Service whose flows have no entries */
	FLOW_OF_EGRESS, /* a flow that edge/egress.h handles */
	FLOW_DIRECT,	/* a connection without a Service, from the port of a closed flow */
};

/* Returns whether the flow of a packet has ended, or has to choose its backend again. */
static __always_inline int flow_is_stale(struct context *ctx, struct scratch *w,
					 const struct ct_entry *ct)
{
	return ct_is_reused(w, ct) || backend_gone(w, ct) || yields_to_balancer(w, ct) ||
	       chosen_by_balancer_reused(ctx, w);
}

/* Returns the class of the packet in the scratch area. *ct is the entry of its flow, which is 0 if
 * it has none, and w->out.to the tuple after translation. *backend is the backend of
 * FLOW_UNTRACKED. */
static __always_inline enum flow_class classify(struct context *ctx, struct scratch *w,
						struct ct_entry **ct, int *unreplied,
						struct backend **backend)
{
	int may_be_untracked_here = !w->decap.dsr && may_be_untracked(&w->packet);

	if (may_be_untracked_here) {
		*backend = backend_lookup(untracked_select(w->in.hash));
		if (*backend)
			return FLOW_UNTRACKED;
	}
	*ct = ct_lookup(&w->packet.tuple, w->in.hash, unreplied);
	if (!*ct || !ct_read(*ct, w->in.hash, &w->out.to)) {
		*ct = 0;
		return FLOW_NEW;
	}
	if (flow_handled_at_egress(*ct))
		return FLOW_OF_EGRESS;
	if (ct_syn_unseen(*ct, &w->packet))
		return FLOW_DIRECT;
	if (*unreplied && may_be_untracked_here) {
		*backend = backend_lookup(forged_syn(w, *ct));
		if (*backend)
			return FLOW_UNTRACKED;
	}
	return flow_is_stale(ctx, w, *ct) ? FLOW_STALE : FLOW_TRACKED;
}

static __always_inline enum action edge_ingress(struct context *ctx)
{
	struct scratch *w = scratch_get();
	struct backend *backend;
	enum parsed parsed;
	struct ct_entry *ct;
	enum action action;
	int unreplied;

	if (!w)
		return packet_pass(ctx);
	if ((!dry_run && !packet_is_for_node(ctx, &w->own)) || prefilter_miss(ctx, 0))
		return pass(ctx, EDGE_NOT_SERVICE);
	scratch_reset(w);
	parsed = packet_parse(ctx, &w->packet);
	if (may_be_encapsulated(&w->packet, parsed)) {
		action = decap_open(ctx, w, &parsed);
		if (action != ACTION_CONTINUE)
			return action;
		if (w->decap.dsr && xfrm_concerns(&w->decap.outer))
			return drop(ctx, EDGE_DROP_XFRM);
	}
	switch (parsed) {
	case PARSED_OTHER:
#ifdef EDGE_XDP
		if (packet_priority_tagged(ctx))
			return pass(ctx, EDGE_TO_TC);
#endif
		if (!w->decap.dsr && is_icmp(&w->packet)) {
			action = icmp_echo(ctx, SOURCE_CLASSES);
			if (action != ACTION_CONTINUE)
				return action;
		}
		action = reject_other_protocol(ctx, w);
		if (action != ACTION_CONTINUE)
			return action;
		action = icmp_error_forward(ctx);
		return action == ACTION_CONTINUE ? icmp_error_dsr(ctx) : action;
	case PARSED_MALFORMED:
		return pass(ctx, EDGE_MALFORMED);
	default:
		break;
	}
	if (w->packet.fragment && !fragment_ports(ctx))
		return orphan_fragment(ctx, w);
	w->in.hash = tuple_hash(&w->packet.tuple);
	switch (classify(ctx, w, &ct, &unreplied, &backend)) {
	case FLOW_TRACKED:
		return ct->dsr ? established_dsr(ctx, w, ct, unreplied)
			       : established(ctx, w, ct, unreplied);
	case FLOW_UNTRACKED:
		return send_untracked(ctx, w, backend);
	case FLOW_DIRECT:
		ct_delete_flow(ct);
		return pass(ctx, EDGE_NOT_SERVICE);
	case FLOW_OF_EGRESS:
		return pass(ctx, EDGE_NOT_SERVICE);
	case FLOW_NEW:
	case FLOW_STALE:
		break;
	}
	if (w->decap.dsr) {
		action = chosen_by_balancer(ctx);
		if (action != ACTION_CONTINUE)
			return action;
	}
	if (ct) {
		w->in.port_taken = ct_port_is_taken(ct);
		ct_delete_flow(ct);
	}
	return new_flow(ctx, w);
}
