/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about packets of flows with DSR, at the balancer:
 *
 *   - about a packet that it has encapsulated, to the node's own address: the client learns
 *     of it in the Service's name, as RFC 2003 section 4 and RFC 2473 section 8 say
 *   - about what a backend has sent to a client in the Service's name, to which they are
 *     addressed then: the backend's node gets them as it gets the flow's packets, and
 *     translates them
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "direct.h"
#include "frontend.h"
#include "icmp.h"
#include "outer_mtu.h"
#include "packet.h"
#include "past.h"
#include "select.h"

/* What every way takes. */
#define IPV4_LEAST_MTU 68
#define IPV6_LEAST_MTU 1280

/* Whether all of a message is there: of a packet without ports nobody has looked. */
static __always_inline int message_whole(struct context *ctx, const struct packet *p)
{
	return p->l3 + p->length <= packet_length(ctx) && p->l4 < p->l3 + p->length;
}

/* Sends an error on to a flow's backend; other_key has the flow's client and what that has
 * asked for, which the option says of a packet without ports, too. */
static __always_inline int report_on(struct context *ctx, struct workspace *w, enum dsr dsr,
				     const struct address *backend, __be16 port,
				     const struct address *node)
{
	struct packet *p = &w->packet;
	const struct address *own;

	if (!message_whole(ctx, p) ||
	    !address_equal(&p->tuple.destination, &w->other_key.destination))
		return leave_alone(ctx, EDGE_NOT_OURS);
	dsr_to(w, dsr, backend, port);
	if (dsr_way(ctx, w, node, 0))
		return w->result;
	/* The router that reports may be on the way to the backend, too, and would drop what
	 * comes in with its own address. */
	own = dsr == DSR_OPT ? address_on(w->fib.ifindex, p->is_v6) : 0;
	if (own)
		w->to.source = *own;
	p->tuple.destination_port = w->other_key.destination_port;
	return dsr_send(ctx, w, EDGE_ICMP);
}

/* About a packet of a flow whose record is there. */
static __always_inline int report_of_flow(struct context *ctx, struct workspace *w,
					  const struct track *track)
{
	struct tuple becomes = track->becomes;

	w->hash = track->tag;
	w->service = track->service;
	return report_on(ctx, w, track->dsr, &becomes.destination, becomes.destination_port,
			 node_of(track, &becomes.destination));
}

/* What the first packet of a flow would ask for, if that is served by DSR, or was. */
static __always_inline struct frontend *direct_frontend(const struct tuple *asked)
{
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};
	struct frontend *frontend = frontend_lookup(&key);

	return frontend && (frontend->dsr || frontend->flags & FRONTEND_HISTORY) ? frontend : 0;
}

/* The backend of a flow without a record: the one that is chosen for its ends, or was, unless
 * the client's history decides. w->dsr is how packets get there; none is found without DSR. */
static __always_inline struct backend *backend_of_slot(struct workspace *w,
						       const struct tuple *asked)
{
	struct frontend *frontend = direct_frontend(asked);
	const struct decision *decision;
	struct backend *backend;
	__u32 dsr, id;

	if (!frontend)
		return 0;
	decision = &frontend->decisions[FROM_OUTSIDE];
	dsr = frontend->dsr;
	id = past_backend(frontend, asked->protocol, w->hash, &dsr);
	if (!id && decision->count && !frontend->affinity_seconds)
		id = slot_backend(decision->first + chosen_slot(decision, w->hash));
	backend = backend_lookup(id);
	if (!backend)
		return 0;
	w->service = frontend->service;
	/* From the table: for the comparisons there is no room on the stack (encapsulate). */
	w->dsr = dsr_of(dsr, backend, class_in_table(&asked->source), &asked->source);
	return w->dsr ? backend : 0;
}

/* About a packet of a flow without a record. */
static __always_inline int report_of_slot(struct context *ctx, struct workspace *w)
{
	struct backend *backend;

	w->hash = tuple_hash(&w->other_key);
	backend = backend_of_slot(w, &w->other_key);
	if (!backend)
		return leave_alone(ctx, EDGE_NOT_OURS);
	if (is_redirect(ctx, &w->packet))
		return lose(ctx, w, EDGE_DROP_REDIRECT);
	return report_on(ctx, w, w->dsr, &backend->address, backend->port, &backend->node);
}

/* Which error a client gets for one about what was put around its packet; -1: none. Of a
 * way that it does not take it is to know no more than that it is none. */
static __always_inline int error_for_client(int is_v6, const struct icmp_header *icmp)
{
	if (is_v6)
		return icmp->type == 2 ? ICMP_TOO_BIG : ICMP_HOST_UNREACHABLE;
	if (icmp->type == 3 && icmp->code == 4)
		return ICMP_TOO_BIG;
	return icmp->type == 3 || icmp->type == 11 || icmp->type == 12 ? ICMP_HOST_UNREACHABLE : -1;
}

/* Reads the client's packet in what an error quotes: w->quoted then. Returns the length of
 * what was put around it; 0 if there is no such packet. */
static __always_inline __u32 quoted_inside(struct context *ctx, struct workspace *w)
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
	if (begin - outer != dsr_overhead(dsr, is_v6)) /* options: not of this node */
		return 0;
	__builtin_memset(quoted, 0, sizeof(*quoted));
	quoted->l3 = begin;
	parsed = is_v6 ? parse_v6(ctx, quoted) : parse_v4(ctx, quoted);
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

/* Whether an address is the node's own: no way leads there. Not inline: the stack of what calls
 * this is nearly full. */
static __noinline int own_address(struct context *ctx, struct workspace *w)
{
	struct tuple to = {.source = w->packet.tuple.source,
			   .destination = w->packet.tuple.destination};

	return not_routed(route_of(ctx, 0, w->packet.is_v6, w->packet.tuple.protocol, &to, &w->fib,
				   packet_device(ctx), 0));
}

/* Whether this node sends a client's packet, which an error quotes, with what is quoted around
 * it: to that backend or node. other_key has the ends of that, turned round. */
static __always_inline int sent_so(struct workspace *w)
{
	const struct tuple *answer = &w->other_key;
	const struct address *node;
	struct backend *backend;
	struct track *track;
	int half;

	w->hash = tuple_hash(&w->quoted.tuple);
	track = track_find(&w->quoted.tuple, w->hash, &half);
	if (track) {
		w->dsr = track->dsr;
		w->to = track->becomes;
		node = node_of(track, &w->to.destination);
	} else {
		backend = backend_of_slot(w, &w->quoted.tuple);
		if (!backend)
			return 0;
		w->to.destination = backend->address;
		node = &backend->node;
	}
	if (!w->dsr)
		return 0;
	dsr_outer(w, node);
	w->dsr = DSR_NONE; /* what the client gets has come by nothing of that kind */
	return address_equal(&w->outer.destination, &answer->source) &&
	       w->outer.protocol == answer->protocol &&
	       w->outer.source_port == answer->destination_port &&
	       w->outer.destination_port == answer->source_port;
}

/* The MTU that a router tells; 0: it does not (RFC 1191 section 5). */
static __always_inline __u32 mtu_told(const struct packet *p, const struct icmp_header *icmp)
{
	__u32 mtu = bpf_ntohl(icmp->rest);

	return p->is_v6 ? mtu : mtu & 0xffff;
}

/* What is left inside of an MTU. No way has less, whoever says so: RFC 791 section 3.2, and RFC
 * 8200 section 5, where it is told of narrower ones, too (RFC 2473 section 7.1). 0: the router does
 * not say, and the client guesses (RFC 1191 section 5). */
static __always_inline __u32 mtu_inside(int is_v6, __u32 mtu, __u32 overhead)
{
	__u32 least = is_v6 ? IPV6_LEAST_MTU : IPV4_LEAST_MTU;

	if (!mtu && !is_v6)
		return 0;
	return mtu > least + overhead ? mtu - overhead : least;
}

/* About a packet that this node has encapsulated. Who makes one up has to name a flow, or a
 * Service with DSR, and whom the flow's packets are sent to; what he gets sent is no more than he
 * sends, and not more often than other errors are. */
static __always_inline int report_to_client(struct context *ctx, struct workspace *w)
{
	struct address from = w->quoted.tuple.source;
	struct icmp_header icmp;
	enum answered answered;
	enum routed routed;
	__u32 overhead, alone, length;
	int error;

	if (!message_whole(ctx, &w->packet) ||
	    packet_load(ctx, w->packet.l4, &icmp, sizeof(icmp)) ||
	    !address_equal(&from, &w->packet.tuple.destination))
		return leave_alone(ctx, EDGE_NOT_OURS);
	tuple_reverse(&w->quoted.tuple, &w->other_key);
	alone = outer_alone(&w->packet, &w->quoted);
	length = w->quoted.length;
	overhead = quoted_inside(ctx, w);
	error = error_for_client(w->packet.is_v6, &icmp);
	if (alone && error == ICMP_TOO_BIG && own_address(ctx, w) &&
	    outer_learn(w, &w->other_key.source, length, alone, mtu_told(&w->packet, &icmp)))
		return leave_alone(ctx, EDGE_ICMP);
	if (!overhead || (error < 0 && !is_redirect(ctx, &w->packet)) || !own_address(ctx, w) ||
	    !sent_so(w))
		return leave_alone(ctx, EDGE_NOT_OURS);
	if (error < 0)
		return lose(ctx, w, EDGE_DROP_REDIRECT);
	tuple_reverse(&w->quoted.tuple, &w->to);
	routed = route_of(ctx, 0, w->packet.is_v6, w->packet.tuple.protocol, &w->to, &w->fib,
			  packet_device(ctx), 0);
#ifdef EDGE_XDP
	if (left_to_tc(ctx, routed, &w->fib))
		return leave_alone(ctx, EDGE_TO_TC);
#endif
	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return lose(ctx, w, EDGE_DROP_NO_ROUTE);
	answered = answer_error(ctx, &w->quoted, &w->to.source, error,
				mtu_inside(w->packet.is_v6, mtu_told(&w->packet, &icmp), overhead));
#ifdef EDGE_XDP
	if (answered == ANSWER_NO_ROOM)
		return leave_alone(ctx, EDGE_TO_TC);
#endif
	if (answered == ANSWER_NOT_DUE)
		return lose(ctx, w, EDGE_DROP_RATE);
	if (answered != ANSWERED)
		return lose(ctx, w, EDGE_DROP_FAULT);
	edge_count(EDGE_ICMP);
	return packet_forward(ctx, &w->fib, 0);
}

/* An ICMP error about no flow that is known by the ends that it quotes: those are in
 * other_key then. Not static: the verifier looks at it once. */
__noinline int report_direct(struct context *ctx)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	__u8 protocol;

	if (!w || !w->quoted.l3)
		return leave_alone(ctx, EDGE_NOT_OURS);
	protocol = w->quoted.tuple.protocol;
	if (protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6 ||
	    (protocol == IPPROTO_UDP && w->other_key.source_port == bpf_htons(GENEVE_PORT)))
		return report_to_client(ctx, w);
	if (!has_ports(protocol))
		return leave_alone(ctx, EDGE_NOT_OURS);
	return report_of_slot(ctx, w);
}
