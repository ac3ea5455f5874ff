/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets from balancers for backends on this node (encap/wire.h). The rest of the edge handles the
 * inner packet as the client sent it. The frame stays unchanged until it is forwarded
 * (encap/decap.h), so packets for others are passed unchanged. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "dsr/maps.h"
#include "encap/decap.h"
#include "encap/parse.h"
#include "filter/source_class.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/members.h"
#include "lb/serving.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "route/fib.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* Returns enum balancer of an address; 0: not a balancer. */
static __always_inline __u32 balancer_of(const struct address *a)
{
	struct network_key key = {.prefixlen = 128, .address = *a};
	enum balancer *balancer = bpf_map_lookup_elem(&balancers, &key);

	return balancer ? *balancer : 0;
}

/* Returns whether the outer source of a packet is plausible. A tunnel starts at another node,
 * because a pod can forge this node's address. A packet with the option has the client's address,
 * which is neither a pod's nor a node's. An ICMP error may come from any of them. */
static __always_inline int may_be_from_balancer(const struct scratch *w, enum parsed inside)
{
	const struct address *source = &w->decap.outer.source;

	if (w->decap.dsr != DSR_OPT)
		return balancer_of(source) == BALANCER;
	return inside == PARSED_OTHER || (class_of(source) == FROM_OUTSIDE && !balancer_of(source));
}

/* Returns the frontend that a balancer has received the packet for. A NodePort is looked up at this
 * node's own address, because the balancer's has no frontend here. */
static __always_inline struct frontend *frontend_of_balancer(struct context *ctx,
							     const struct tuple *asked)
{
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};
	struct frontend *frontend = frontend_lookup(&key);
	const struct address *own;

	if (frontend || balancer_of(&key.address) != BALANCER)
		return frontend;
	own = address_on(packet_device(ctx), !address_is_v4(&key.address));
	if (!own)
		return 0;
	key.address = *own;
	frontend = frontend_at(&key);
	return frontend && frontend->kind == FRONTEND_NODE_PORT ? frontend : 0;
}

/* Returns whether the inner packet is for a Service or of a flow to a backend on this node. */
static __always_inline int inner_is_known(struct context *ctx, const struct scratch *w)
{
	const struct tuple *asked = &w->quoted.tuple;
	const struct ct_entry *ct;
	int unreplied;

	if (frontend_of_balancer(ctx, asked))
		return 1;
	ct = ct_lookup(asked, tuple_hash(asked), &unreplied);
	return ct && ct->flags & CT_LOCAL;
}

/* Returns whether congestion marks contradict each other: routers set them only in packets of
 * ECN-capable senders (RFC 6040 section 4.2). */
static __always_inline int ecn_contradicts(struct context *ctx, const struct scratch *w)
{
	__be32 word;

	return w->decap.dsr != DSR_OPT && w->decap.ecn == ECN_EXPERIENCED &&
	       !packet_load(ctx, w->quoted.l3, &word, sizeof(word)) &&
	       ecn_of(word, w->quoted.is_v6) == ECN_NOT_CAPABLE;
}

enum decapsulated {
	NOT_ENCAPSULATED, /* not for this node to decapsulate */
	DECAPSULATED,	  /* w->packet is the inner packet */
	DECAPSULATED_ICMP,
	DECAPSULATED_SPOOFED,
	DECAPSULATED_CONTRADICTION,
};

/* Checks for an encapsulated packet. Global function: the verifier checks it once. */
__noinline int decap_inspect(struct context *ctx, __u32 parsed)
{
	struct scratch *w = scratch_get();
	enum parsed inside;

	if (!w)
		return NOT_ENCAPSULATED;
	inside = parse_encapsulation(ctx, w, parsed);
	if (inside == PARSED_MALFORMED)
		goto not_ours;
	if (w->decap.dsr == DSR_OPT && inside == PARSED && !inner_is_known(ctx, w))
		goto not_ours;
	if (!may_be_from_balancer(w, inside)) {
		if (inside != PARSED || !inner_is_known(ctx, w))
			goto not_ours;
		w->packet = w->quoted;
		return DECAPSULATED_SPOOFED;
	}
	if (ecn_contradicts(ctx, w))
		return DECAPSULATED_CONTRADICTION;
	w->packet = w->quoted;
	return inside == PARSED ? DECAPSULATED : DECAPSULATED_ICMP;
not_ours:
	w->decap.dsr = DSR_NONE;
	return NOT_ENCAPSULATED;
}

/* Makes w->packet the inner packet, if this node decapsulates it. */
static __always_inline enum action decap_open(struct context *ctx, struct scratch *w,
					      enum parsed *parsed)
{
	switch (decap_inspect(ctx, *parsed)) {
	case DECAPSULATED:
		*parsed = PARSED;
		break;
	case DECAPSULATED_ICMP:
		*parsed = PARSED_OTHER;
		break;
	case DECAPSULATED_SPOOFED:
		return drop(ctx, EDGE_DROP_SPOOFED);
	case DECAPSULATED_CONTRADICTION:
		return pass(ctx, EDGE_MALFORMED);
	default:
		return ACTION_CONTINUE;
	}
#ifdef FIXED_SIZE
	return pass(ctx, EDGE_TO_TC);
#else
	return ACTION_CONTINUE;
#endif
}

/* Returns whether to ignore the entry of a packet, because a balancer has chosen the backend. */
static __always_inline int yields_to_balancer(const struct scratch *w, const struct ct_entry *ct)
{
	return w->decap.dsr && (ct->flags & (CT_LOCAL | CT_REPLY)) != CT_LOCAL;
}

/* Returns whether the backend in w->out.to no longer serves the frontend. Global function: the
 * verifier checks it once. */
__noinline int chosen_by_balancer_gone(struct context *ctx)
{
	__u32 slot = 0;
	struct scratch *w = scratch_get();
	struct destination backend = {};
	struct frontend *frontend;

	if (!w)
		return 0;
	frontend = frontend_of_balancer(ctx, &w->packet.tuple);
	destination_set(&backend, &w->out.to.destination, w->out.to.destination_port);
	return !frontend || !serves(frontend, &backend, &slot);
}

/* Returns whether a SYN from a balancer reuses the tuple of a flow whose backend was removed, and
 * so cannot validate it (like backend_gone at the balancer). */
static __always_inline int chosen_by_balancer_reused(struct context *ctx, const struct scratch *w)
{
	return w->decap.dsr && tcp_opens(&w->packet) && chosen_by_balancer_gone(ctx);
}

/* Looks up the backend that a balancer has chosen, which must be on this node. Packets for other
 * nodes are forwarded unchanged. Global function: the verifier checks it once. */
__noinline enum action chosen_by_balancer(struct context *ctx)
{
	__u32 slot = 0;
	struct scratch *w = scratch_get();
	struct destination chosen = {};
	struct frontend *frontend;
	struct backend *backend;

	if (!w)
		return packet_pass(ctx);
	frontend = frontend_of_balancer(ctx, &w->packet.tuple);
	if (!frontend || address_is_loopback(&w->packet.tuple.destination)) {
		return pass(ctx, EDGE_NOT_SERVICE);
	}
	w->in.service = frontend->service;
	/* Anybody can send an option: accept it only if the Service uses DSR_OPT. */
	if (w->decap.dsr == DSR_OPT && frontend->dsr != DSR_OPT) {
		return drop(ctx, EDGE_DROP_SPOOFED);
	}
	destination_set(&chosen, &w->decap.backend, w->decap.port);
	backend = serves(frontend, &chosen, &slot) ? backend_lookup(slot_backend(slot)) : 0;
	if (!backend) {
		return drop(ctx, w->decap.dsr == DSR_OPT ? EDGE_DROP_SPOOFED
							 : EDGE_DROP_BACKEND_NOT_LOCAL);
	}
	if (!backend->local) {
		if (!not_routed(route(ctx, w, &w->decap.outer)))
			return pass(ctx, EDGE_NOT_SERVICE);
		return drop(ctx, EDGE_DROP_BACKEND_NOT_LOCAL);
	}
	w->decap.chosen = slot_backend(slot);
	return ACTION_CONTINUE;
}
