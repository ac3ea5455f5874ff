/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows of the edge between a client and a pod of this node that serves it, or between a pod of
 * this node without socket hooks and its backend, wherever that is. The edge has rewritten the
 * client's packets at the device that they arrived by. They take the shortcut from there, and the
 * replies are rewritten where they arrive at the node, not when they leave it (edge/egress.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "conntrack/update.h"
#include "lb/frontend.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "pod/deliver.h"
#include "pod/flow_cache.h"
#include "pod/known_flow.h"
#include "pod/route.h"
#include "pod/types.h"
#include "route/fib.h"
#include "route/redirect.h"
#include "state/scratch.h"
#include "state/types.h"

/* Whose flow a packet is of. */
enum pod_flow {
	FLOW_OF_NOBODY,
	FLOW_OF_STACK, /* the edge has it, and handles it on the stack's path */
	FLOW_TO_POD,   /* of a client, rewritten at this device */
	FLOW_FROM_POD, /* a reply to be rewritten */
	FLOW_ERROR,    /* an ICMP error about a packet of the last two */
};

/* Determines whose flow a packet is of. *ct is the entry of FLOW_FROM_POD. *unreplied: nobody has
 * replied to the client yet. A client may also talk to the pod directly, from the same port: the
 * pod's packets then are of nobody's flow, and w->in.reused tells that a closed flow has the tuple.
 */
static __always_inline enum pod_flow pod_flow_of(struct context *ctx, struct scratch *w,
						 struct ct_entry **ct, int *unreplied)
{
	struct packet *p = &w->packet;
	const struct ct_entry *reply;
	struct frontend_key *key = &w->keys.frontend;

	w->in.hash = tuple_hash(&p->tuple);
	*ct = ct_lookup(&p->tuple, w->in.hash, unreplied);
	if (*ct && ct_read(*ct, w->in.hash, &w->out.to)) {
		if (!is_local_reply(*ct))
			return FLOW_OF_STACK;
		w->in.reused = ct_syn_unseen(*ct, p);
		if (w->in.reused || (*unreplied && !ct_reply_valid(*ct)))
			return FLOW_OF_NOBODY;
		return FLOW_FROM_POD;
	}
	tuple_reverse(&p->tuple, &w->ct.reverse_key);
	reply = ct_lookup(&w->ct.reverse_key, tuple_hash(&w->ct.reverse_key), unreplied);
	*unreplied = reply && reply->state == CT_NEW;
	if (reply) /* without the device the reply might leave by another one, past the program */
		return is_local_reply(reply) && reply->device == ctx->ifindex ? FLOW_TO_POD
									      : FLOW_OF_STACK;
	key->address = p->tuple.destination;
	key->port = p->tuple.destination_port;
	key->protocol = p->tuple.protocol;
	return frontend_lookup(key) ? FLOW_OF_STACK : FLOW_OF_NOBODY;
}

/* pod_flow_of for an ICMP error about a packet with a tuple. */
static __always_inline enum pod_flow error_flow_of(struct scratch *w, const struct tuple *about)
{
	switch (edge_has_flow(w, about)) {
	case EDGE_HAS_NONE:
		return FLOW_OF_NOBODY;
	case EDGE_HAS_PODS_FLOW:
		return FLOW_ERROR;
	default:
		return FLOW_OF_STACK;
	}
}

/* Rewrites a reply and sends it to the client: a pod of this node, or by the device that the
 * client's packets arrived by. `bridged`, `path`: to a pod. */
static __always_inline enum action pod_reply(struct context *ctx, struct scratch *w,
					     struct ct_entry *ct, int unreplied, int bridged,
					     struct pod_flow_entry *flow, enum pod_path path)
{
	const struct pod *client = pod_with(&w->out.to.destination);
	const struct pod_device *out;
	__u32 device = ct->device;
	enum routed routed = ROUTED;

	if (!device || w->packet.hops <= 1)
		return pod_stack(ctx, POD_STACK_SERVICE);
	if (client) {
		w->ct.reverse_key = w->packet.tuple;
		w->ct.reverse_key.destination = w->out.to.destination;
		w->ct.reverse_key.destination_port = w->out.to.destination_port;
		if (client->device != device ||
		    !pod_flow_route(ctx, &w->ct.reverse_key, client, !bridged, flow, path) ||
		    wire_length(ctx, &w->packet) > flow->to.mtu)
			return pod_stack(ctx, POD_STACK_SERVICE);
	} else {
		out = pod_device_at(device);
		if (!out || out->role != POD_ROLE_NODES)
			return pod_stack(ctx, POD_STACK_SERVICE);
		routed = route_by_client_device(ctx, w, &w->out.to, device);
		if (routed == ROUTED_TOO_BIG)
			return too_big(ctx);
		if (not_routed(routed) || w->out.fib.ifindex != device)
			return pod_stack(ctx, POD_STACK_SERVICE);
	}
	ct_update(ctx, w, ct, unreplied);
	if (rewrite(ctx, w, 1, EDGE_REPLY))
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	if (client)
		return pod_redirect(ctx, w, &flow->to, 1, flow->by_device, path);
	pod_count(POD_PATH_OUT);
	return packet_forward(ctx, &w->out.fib, w->out.fib_cached);
}

/* Sends an ICMP error about a packet of such a flow by egress of the device behind which its
 * receiver is: there the edge translates what the error quotes, if it has not yet. `to`: the
 * receiver is a pod of this node. Global function: the verifier checks it once. */
__noinline enum action pod_error(struct context *ctx, const struct pod *to, __u32 routed,
				 struct pod_flow_entry *flow, enum pod_path path)
{
	struct scratch *w = scratch_get();
	const struct pod_device *out;
	__u32 device;

	if (!w || !flow)
		return packet_drop(ctx);
	device = w->ct.entry.device;
	out = pod_device_at(device);
	if (w->packet.hops <= 1 || (!to && (!out || out->role != POD_ROLE_NODES)))
		return pod_stack(ctx, POD_STACK_SERVICE);
	w->out.to = w->packet.tuple;
	if (to && !pod_flow_route(ctx, &w->packet.tuple, to, routed, flow, path))
		return pod_stack(ctx, POD_STACK_SERVICE);
	if (!to &&
	    (fib_lookup_cached(ctx, w, &w->out.to, device, BPF_FIB_LOOKUP_OUTPUT) != ROUTED ||
	     w->out.fib.ifindex != device))
		return pod_stack(ctx, POD_STACK_SERVICE);
	if (!packet_decrement_ttl(ctx, &w->packet))
		return packet_drop(ctx);
	pod_count(path);
	if (!to)
		return packet_forward(ctx, &w->out.fib, w->out.fib_cached);
	if (is_unresolved(&flow->to))
		return packet_forward(ctx, &w->out.fib, 0);
	if (frame_for_pod(ctx, &flow->to))
		return packet_drop(ctx);
	packet_untag(ctx);
	return bpf_redirect(flow->to.device, 0);
}
