/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a balancer has sent to this node for a backend of it (dsr.h). The rest of the edge
 * sees the packet that is inside, as the client has sent it, and takes it for one of a client
 * here. Nothing of the frame changes before it is sent on (strip.h): what is other people's
 * stays as it is. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "dsr.h"
#include "edge_tables.h"
#include "forward.h"
#include "frontend.h"
#include "packet.h"
#include "serving.h"
#include "strip.h"
#include "tell.h"
#include "track.h"
#include "workspace.h"
#include "wrapping.h"

/* An enum balancer; 0: neither. */
static __always_inline __u32 balancer_of(const struct address *a)
{
	struct network_key key = {.prefixlen = 128, .address = *a};
	enum balancer *balancer = bpf_map_lookup_elem(&balancers, &key);

	return balancer ? *balancer : 0;
}

/* Whether somebody may have sent a packet so. A tunnel begins at another node: a pod can forge
 * this node's address as well as any. What bears an option has the client as its source, and no
 * client of a balancer is a pod, or a node. Any of them may have a message about a packet. */
static __always_inline int may_send(const struct workspace *w, enum parsed inside)
{
	const struct address *source = &w->wrapping.outer.source;

	if (w->wrapping.dsr != DSR_OPT)
		return balancer_of(source) == BALANCER;
	return inside == PARSED_OTHER || (class_of(source) == FROM_OUTSIDE && !balancer_of(source));
}

/* The frontend for what a balancer has been asked. A NodePort is there on each node's own
 * addresses: the balancer's is the one that this node has, too. */
static __always_inline struct frontend *frontend_told(struct context *ctx,
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

/* Whether what is inside is a Service's, or of a flow to a backend of this node. */
static __always_inline int concerns(struct context *ctx, const struct workspace *w)
{
	const struct tuple *asked = &w->quoted.tuple;
	const struct track *track;
	int half;

	if (frontend_told(ctx, asked))
		return 1;
	track = track_find(asked, tuple_hash(asked), &half);
	return track && track->flags & TRACK_LOCAL;
}

/* Routers note congestion only in packets that bear it (RFC 6040 section 4.2). */
static __always_inline int ecn_contradicts(struct context *ctx, const struct workspace *w)
{
	__be32 word;

	return w->wrapping.dsr != DSR_OPT && w->wrapping.ecn == ECN_EXPERIENCED &&
	       !packet_load(ctx, w->quoted.l3, &word, sizeof(word)) &&
	       ecn_of(word, w->quoted.is_v6) == ECN_NOT_CAPABLE;
}

enum decapsulated {
	NOT_ENCAPSULATED, /* not for this node to open */
	DECAPSULATED,	  /* w->packet is what is inside */
	DECAPSULATED_ICMP,
	DECAPSULATED_SPOOFED,
	DECAPSULATED_CONTRADICTION,
};

/* Looks into a packet. Not static: the verifier looks at it once. */
__noinline int decapsulate(struct context *ctx, __u32 parsed)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	enum parsed inside;

	if (!w)
		return NOT_ENCAPSULATED;
	inside = read_wrapping(ctx, w, parsed);
	if (inside == PARSED_MALFORMED)
		goto not_ours;
	if (w->wrapping.dsr == DSR_OPT && inside == PARSED && !concerns(ctx, w))
		goto not_ours;
	if (!may_send(w, inside)) {
		if (inside != PARSED || !concerns(ctx, w))
			goto not_ours;
		w->packet = w->quoted;
		return DECAPSULATED_SPOOFED;
	}
	if (ecn_contradicts(ctx, w))
		return DECAPSULATED_CONTRADICTION;
	w->packet = w->quoted;
	return inside == PARSED ? DECAPSULATED : DECAPSULATED_ICMP;
not_ours:
	w->wrapping.dsr = DSR_NONE;
	return NOT_ENCAPSULATED;
}

/* Has the rest see what is inside a packet, if it is for this node to open. Returns 0 where
 * `result` is what becomes of it. */
static __always_inline int unwrap(struct context *ctx, struct workspace *w, enum parsed *parsed,
				  int *result)
{
	switch (decapsulate(ctx, *parsed)) {
	case DECAPSULATED:
		*parsed = PARSED;
		break;
	case DECAPSULATED_ICMP:
		*parsed = PARSED_OTHER;
		break;
	case DECAPSULATED_SPOOFED:
		*result = lose(ctx, w, EDGE_DROP_SPOOFED);
		return 0;
	case DECAPSULATED_CONTRADICTION:
		*result = leave_alone(ctx, EDGE_DROP_MALFORMED);
		return 0;
	default:
		return 1;
	}
#ifdef FIXED_SIZE
	*result = leave_alone(ctx, EDGE_TO_TC);
	return 0;
#else
	return 1;
#endif
}

/* Whether a record has nothing to say of a packet, for a balancer says where it is to go. */
static __always_inline int yields(const struct workspace *w, const struct track *track)
{
	return w->wrapping.dsr && (track->flags & (TRACK_LOCAL | TRACK_REPLY)) != TRACK_LOCAL;
}

/* Whether the backend that w->to has serves no more what a balancer has been asked. Not
 * static: the verifier looks at it once. */
__noinline int told_backend_gone(struct context *ctx)
{
	__u32 zero = 0, slot = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	struct destination backend = {};
	struct frontend *frontend;

	if (!w)
		return 0;
	frontend = frontend_told(ctx, &w->packet.tuple);
	destination_set(&backend, &w->to.destination, w->to.destination_port);
	return !frontend || !serves(frontend, &backend, &slot);
}

/* Whether a SYN from a balancer has the ends of a flow whose backend is no more (as
 * direct_over at the balancer): nobody could judge it. */
static __always_inline int told_over(struct context *ctx, const struct workspace *w)
{
	return w->wrapping.dsr && (w->packet.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	       told_backend_gone(ctx);
}

/* Finds the backend that a balancer has chosen. Returns 0 where that is none of this node:
 * `result` is then what becomes of the packet. On the way to another node it is only passing
 * through. Not static: the verifier looks at it once. */
__noinline int told_backend(struct context *ctx, int *result)
{
	__u32 zero = 0, slot = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	struct destination told = {};
	struct frontend *frontend;
	struct backend *backend;

	if (!w || !result)
		return 0;
	frontend = frontend_told(ctx, &w->packet.tuple);
	if (!frontend || address_is_loopback(&w->packet.tuple.destination)) {
		*result = leave_alone(ctx, EDGE_NOT_OURS);
		return 0;
	}
	w->service = frontend->service;
	/* Anybody can send an option: none is believed where the Service is not served so. */
	if (w->wrapping.dsr == DSR_OPT && frontend->dsr != DSR_OPT) {
		*result = lose(ctx, w, EDGE_DROP_SPOOFED);
		return 0;
	}
	destination_set(&told, &w->wrapping.backend, w->wrapping.port);
	backend = serves(frontend, &told, &slot) ? backend_lookup(slot_backend(slot)) : 0;
	if (!backend) {
		*result = lose(ctx, w,
			       w->wrapping.dsr == DSR_OPT ? EDGE_DROP_SPOOFED : EDGE_DROP_NOT_HERE);
		return 0;
	}
	if (!backend->local) {
		if (!not_routed(route(ctx, w, &w->wrapping.outer)))
			*result = leave_alone(ctx, EDGE_NOT_OURS);
		else
			*result = lose(ctx, w, EDGE_DROP_NOT_HERE);
		return 0;
	}
	w->wrapping.told = slot_backend(slot);
	return 1;
}
