/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about packets of DSR flows, at the balancer:
 *
 *   - about a packet that it has encapsulated, sent to the node's address: forwarded to the
 *     client from the Service's address, as in RFC 2003 section 4 and RFC 2473 section 8
 *   - about a packet that a backend has sent to a client from the Service's address, sent to
 *     that address: forwarded to the backend's node like the flow's packets; that node
 *     translates it */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "dsr/forward.h"
#include "dsr/maps.h"
#include "encap/encap.h"
#include "encap/path_mtu.h"
#include "encap/wire.h"
#include "filter/source_class.h"
#include "icmp/quote.h"
#include "icmp/reply.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/jet.h"
#include "lb/members.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "route/fib.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* The MTU that every link supports. */
#define IPV4_LEAST_MTU 68
#define IPV6_LEAST_MTU 1280

/* Returns whether all of a message is present: for packets without ports the parser has not checked
 * it. */
static __always_inline int is_message_complete(struct context *ctx, const struct packet *p)
{
	return p->l3 + p->length <= packet_length(ctx) && p->l4 < p->l3 + p->length;
}

/* Forwards an error to a flow's backend. w->ct.reverse_key has the client and its original
 * destination, which the option carries even for a packet without ports. */
static __always_inline enum action icmp_error_to_backend(struct context *ctx, struct scratch *w,
							 enum dsr dsr,
							 const struct address *backend, __be16 port,
							 const struct address *node)
{
	struct packet *p = &w->packet;
	const struct address *own;
	enum action action;

	if (!is_message_complete(ctx, p) ||
	    !address_equal(&p->tuple.destination, &w->ct.reverse_key.destination))
		return pass(ctx, EDGE_NOT_SERVICE);
	dsr_to(w, dsr, backend, port);
	action = dsr_route_or_reply(ctx, w, node, 0);
	if (action != ACTION_CONTINUE)
		return action;
	/* The reporting router may also be on the path to the backend, and would drop a packet with
	 * its own source address. */
	own = dsr == DSR_OPT ? address_on(w->out.fib.ifindex, p->is_v6) : 0;
	if (own)
		w->out.to.source = *own;
	p->tuple.destination_port = w->ct.reverse_key.destination_port;
	return dsr_send(ctx, w, EDGE_ICMP);
}

/* Handles an error about a packet of a flow with an entry. */
static __always_inline enum action icmp_error_of_flow(struct context *ctx, struct scratch *w,
						      const struct ct_entry *ct)
{
	struct tuple xlate = ct->xlate;

	w->in.hash = ct->tag;
	w->in.service = ct->lb.service;
	return icmp_error_to_backend(ctx, w, ct->dsr, &xlate.destination, xlate.destination_port,
				     node_of_backend(ct, &xlate.destination));
}

/* Returns the frontend of a flow's first packet, if it uses DSR or has used it. */
static __always_inline struct frontend *dsr_frontend(const struct tuple *asked)
{
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};
	struct frontend *frontend = frontend_lookup(&key);

	return frontend && (frontend->dsr || frontend->flags & FRONTEND_HISTORY) ? frontend : 0;
}

/* Returns the backend of a flow without an entry: the one that its tuple selects, now or by the
 * slot's history; none if session affinity decides. Sets w->encap.dsr; returns none without DSR. */
static __always_inline struct backend *backend_of_slot(struct scratch *w, const struct tuple *asked)
{
	struct frontend *frontend = dsr_frontend(asked);
	const struct decision *decision;
	struct backend *backend;
	__u32 dsr, id;

	if (!frontend)
		return 0;
	decision = &frontend->decisions[FROM_OUTSIDE];
	dsr = frontend->dsr;
	id = jet_backend(frontend, asked->protocol, w->in.hash, &dsr);
	if (!id && decision->count && !frontend->affinity_seconds)
		id = slot_choice(decision, w->in.hash);
	backend = backend_lookup(id);
	if (!backend)
		return 0;
	w->in.service = frontend->service;
	/* By table lookup, because the stack has no room for the comparisons (encapsulate). */
	w->encap.dsr = dsr_of(dsr, backend, class_lookup(&asked->source), &asked->source);
	return w->encap.dsr ? backend : 0;
}

/* Handles an error about a packet of a flow without an entry. */
static __always_inline enum action icmp_error_of_slot(struct context *ctx, struct scratch *w)
{
	struct backend *backend;

	w->in.hash = tuple_hash(&w->ct.reverse_key);
	backend = backend_of_slot(w, &w->ct.reverse_key);
	if (!backend)
		return pass(ctx, EDGE_NOT_SERVICE);
	if (is_redirect(ctx, &w->packet))
		return drop(ctx, EDGE_DROP_REDIRECT);
	return icmp_error_to_backend(ctx, w, w->encap.dsr, &backend->address, backend->port,
				     &backend->node);
}

/* Returns the error to send to a client for an error about the outer packet; -1: none. The client
 * learns nothing of a path that its packets do not take except that it is unreachable. */
static __always_inline int icmp_error_for_client(int is_v6, const struct icmp_header *icmp)
{
	if (is_v6)
		return icmp->type == 2 ? ICMP_TOO_BIG : ICMP_HOST_UNREACHABLE;
	if (icmp->type == 3 && icmp->code == 4)
		return ICMP_TOO_BIG;
	return icmp->type == 3 || icmp->type == 11 || icmp->type == 12 ? ICMP_HOST_UNREACHABLE : -1;
}

/* Parses the client's packet in the quote into w->quoted. Returns the overhead of the
 * encapsulation; 0 if there is no such packet. */
static __always_inline __u32 quoted_inside(struct context *ctx, struct scratch *w)
{
	struct packet *quoted = &w->quoted;
	const struct geneve_header *geneve;
	__u32 begin = quoted->l4, end = w->packet.l3 + w->packet.length, outer = quoted->l3;
	enum dsr dsr = DSR_IPIP;
	const __be16 *ports;
	int is_v6 = w->packet.is_v6;
	enum parsed parsed;

	if (quoted->tuple.protocol == IPPROTO_UDP) {
		ports = packet_bytes(ctx, begin, sizeof(struct udphdr));
		if (!ports || ports[1] != bpf_htons(GENEVE_PORT))
			return 0;
		begin += dsr_overhead(DSR_GENEVE, is_v6) -
			 (is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
		dsr = DSR_GENEVE;
		geneve = packet_bytes(ctx, quoted->l4 + sizeof(struct udphdr), sizeof(*geneve));
		if (!geneve || geneve->version_length != (is_v6 ? 6 : 3))
			return 0;
	} else if (quoted->tuple.protocol != (is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP)) {
		return 0;
	}
	if (begin - outer != dsr_overhead(dsr, is_v6)) /* options: not sent by this node */
		return 0;
	__builtin_memset(quoted, 0, sizeof(*quoted));
	quoted->l3 = begin;
	parsed = is_v6 ? parse_v6(ctx, quoted) : parse_quoted_v4(ctx, quoted);
	if (parsed != PARSED || quoted->fragment == FRAGMENT_LATER || quoted->l4 + 8 > end ||
	    quoted->l4 + 8 > begin + quoted->length)
		return 0;
	ports = packet_bytes(ctx, quoted->l4, 8);
	if (!ports)
		return 0;
	quoted->tuple.source_port = ports[0];
	quoted->tuple.destination_port = ports[1];
	if (quoted->length > end - begin)
		quoted->length = end - begin;
	return dsr_overhead(dsr, is_v6);
}

/* Returns whether the destination is the node's own address: there is no route to it. Not inlined:
 * the stack of the callers is nearly full. */
static __noinline int is_own_address(struct context *ctx, struct scratch *w)
{
	struct tuple to = {.source = w->packet.tuple.source,
			   .destination = w->packet.tuple.destination};

	return not_routed(
		fib_lookup(ctx, w, 0, w->packet.tuple.protocol, &to, packet_device(ctx), 0));
}

/* Returns whether this node sends the quoted client packet in the quoted encapsulation.
 * w->ct.reverse_key is the outer tuple reversed. */
static __always_inline int is_encapsulated_so(struct scratch *w)
{
	const struct tuple *reply = &w->ct.reverse_key;
	const struct address *node;
	struct backend *backend;
	struct ct_entry *ct;
	int unreplied;

	w->in.hash = tuple_hash(&w->quoted.tuple);
	ct = ct_lookup(&w->quoted.tuple, w->in.hash, &unreplied);
	if (ct) {
		w->encap.dsr = ct->dsr;
		w->out.to = ct->xlate;
		node = node_of_backend(ct, &w->out.to.destination);
	} else {
		backend = backend_of_slot(w, &w->quoted.tuple);
		if (!backend)
			return 0;
		w->out.to.destination = backend->address;
		node = &backend->node;
	}
	if (!w->encap.dsr)
		return 0;
	dsr_outer(w, node);
	w->encap.dsr = DSR_NONE; /* the error to the client is not encapsulated */
	return address_equal(&w->encap.outer.destination, &reply->source) &&
	       w->encap.outer.protocol == reply->protocol &&
	       w->encap.outer.source_port == reply->destination_port &&
	       w->encap.outer.destination_port == reply->source_port;
}

/* Returns the MTU that a router reports; 0: none (RFC 1191 section 5). */
static __always_inline __u32 mtu_of_error(const struct packet *p, const struct icmp_header *icmp)
{
	__u32 mtu = bpf_ntohl(icmp->rest);

	return p->is_v6 ? mtu : mtu & 0xffff;
}

/* Returns the MTU without the encapsulation, but at least the minimum of every link, whatever the
 * router reports: RFC 791 section 3.2, and RFC 8200 section 5 (RFC 2473 section 7.1 for links
 * reported as narrower). 0: the router reports none, and the client estimates (RFC 1191 section 5).
 */
static __always_inline __u32 mtu_inside(int is_v6, __u32 mtu, __u32 overhead)
{
	__u32 least = is_v6 ? IPV6_LEAST_MTU : IPV4_LEAST_MTU;

	if (!mtu && !is_v6)
		return 0;
	return mtu > least + overhead ? mtu - overhead : least;
}

/* Handles an error about a packet that this node has encapsulated. To forge one, a sender has to
 * know a flow or a Service with DSR, and the outer destination; it gains no amplification, and the
 * rate limit of errors applies. */
static __always_inline enum action icmp_error_to_client(struct context *ctx, struct scratch *w)
{
	struct address from = w->quoted.tuple.source;
	struct icmp_header icmp;
	enum reply_result reply;
	enum routed routed;
	__u32 overhead, alone, length;
	int error;

	if (!is_message_complete(ctx, &w->packet) ||
	    packet_load(ctx, w->packet.l4, &icmp, sizeof(icmp)) ||
	    !address_equal(&from, &w->packet.tuple.destination))
		return pass(ctx, EDGE_NOT_SERVICE);
	tuple_reverse(&w->quoted.tuple, &w->ct.reverse_key);
	alone = quoted_outer_only(&w->packet, &w->quoted);
	length = w->quoted.length;
	overhead = quoted_inside(ctx, w);
	error = icmp_error_for_client(w->packet.is_v6, &icmp);
	if (alone && error == ICMP_TOO_BIG && is_own_address(ctx, w) &&
	    outer_mtu_learn(w, &w->ct.reverse_key.source, length, alone,
			    mtu_of_error(&w->packet, &icmp)))
		return pass(ctx, EDGE_ICMP);
	if (!overhead || (error < 0 && !is_redirect(ctx, &w->packet)) || !is_own_address(ctx, w) ||
	    !is_encapsulated_so(w))
		return pass(ctx, EDGE_NOT_SERVICE);
	tuple_reverse(&w->quoted.tuple, &w->out.to);
	/* A health check of this node has no client. It fails by its timeout. */
	if (bpf_map_lookup_elem(&dsr_check_replies, &w->out.to))
		return pass(ctx, EDGE_NOT_SERVICE);
	if (error < 0)
		return drop(ctx, EDGE_DROP_REDIRECT);
	routed = fib_lookup(ctx, w, 0, w->packet.tuple.protocol, &w->out.to, packet_device(ctx), 0);
#ifdef EDGE_XDP
	if (needs_tc(ctx, routed, &w->out.fib))
		return pass(ctx, EDGE_TO_TC);
#endif
	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return drop(ctx, EDGE_DROP_NO_ROUTE);
	reply = reply_icmp_error(
		ctx, &w->quoted, &w->out.to.source, error,
		mtu_inside(w->packet.is_v6, mtu_of_error(&w->packet, &icmp), overhead));
#ifdef EDGE_XDP
	if (reply == REPLY_NO_TAILROOM)
		return pass(ctx, EDGE_TO_TC);
#endif
	if (reply == REPLY_RATE_LIMITED)
		return drop(ctx, EDGE_ICMP_RATE_LIMITED);
	if (reply != REPLY_SENT)
		return drop(ctx, EDGE_DROP_REWRITE_FAILED);
	edge_count(EDGE_ICMP);
	return packet_forward(ctx, &w->out.fib, 0);
}

/* Handles an ICMP error that matches no flow by the quoted tuple; w->ct.reverse_key is that tuple
 * reversed. Global function: the verifier checks it once. */
__noinline enum action icmp_error_dsr(struct context *ctx)
{
	struct scratch *w = scratch_get();
	__u8 protocol;

	if (!w || !w->quoted.l3)
		return pass(ctx, EDGE_NOT_SERVICE);
	protocol = w->quoted.tuple.protocol;
	if (protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6 ||
	    (protocol == IPPROTO_UDP && w->ct.reverse_key.source_port == bpf_htons(GENEVE_PORT)))
		return icmp_error_to_client(ctx, w);
	if (!has_ports(protocol))
		return pass(ctx, EDGE_NOT_SERVICE);
	return icmp_error_of_slot(ctx, w);
}
