/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* sendmsg(2) and recvmsg(2) of UDP sockets: each datagram has its destination, and the
 * socket's flows (flow.h) say what was asked. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "decide.h"
#include "flow.h"
#include "record.h"
#include "select.h"
#include "snat.h"

/* Whether packets are served, too (lib/edge.h). Set by the loader. */
const volatile __u8 edge_serves = 0;

/* A datagram to a plain address, of a socket that asks Services too: if the same
 * address is also a backend of one of these, its answers have to be told apart. */
static __always_inline void note_plain(struct bpf_sock *sk, struct flow_set *set,
				       const struct destination *d)
{
	struct flow *flow = flow_by_service(set, d), *other;

	if (flow && flow_plain(flow)) {
		flow_ask(set, flow);
		return;
	}
	if (flow)
		flow_clear(flow); /* the address is no Service's any more */
	other = flow_by_backend(set, d);
	if (!other)
		return;
	if (flow_holds(other))
		flow_begin(sk, set, d, d);
	else
		flow_clear(other);
}

/* How often a backend that another flow of the socket has is passed over. */
#define OTHER_CHOICES 3

/* Chooses a backend for a socket's first datagram to a service, another one than
 * those that the socket asks already if there is one: answers are told apart by
 * where they come from. */
static __always_inline int choose_for_flow(const struct frontend *frontend,
					   const struct decision *decision,
					   const struct address *client, struct flow_set *set,
					   struct destination *chosen)
{
	for (int i = 0; i <= OTHER_CHOICES; i++) {
		struct backend *backend = backend_lookup(
			select_backend(frontend, decision, client, bpf_get_prandom_u32()));

		if (!backend)
			return 0;
		destination_set(chosen, &backend->address, backend->port);
		if (frontend->affinity_seconds || !set->few || !flow_by_backend(set, chosen))
			return 1;
	}
	return 1;
}

static __always_inline enum verdict sendmsg_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d, struct address *source)
{
	const struct decision *decision = 0;
	struct destination service, chosen;
	struct frontend *frontend;
	struct address client;
	struct flow_set set;
	enum verdict verdict;
	__u64 netns_cookie;
	struct flow *flow;

	if (address_is_unspecified(source))
		socket_address(ctx->sk, source);
	destination_meant(d, source);
	/* A connected socket stays with its peer. One of AF_INET6 with an IPv4 peer
	 * comes through here with each send(2) (udpv6_sendmsg). */
	if (connected_to(ctx->sk, &d->address, d->port))
		return VERDICT_PASS;
	flows_of(ctx->sk, &set);
	frontend = frontend_of(d, IPPROTO_UDP);
	if (!frontend) {
		verdict = verdict_without_frontend(ctx, d);
		if (set.few && verdict == VERDICT_PASS)
			note_plain(ctx->sk, &set, d);
		return verdict;
	}
	netns_cookie = bpf_get_netns_cookie(ctx);
	if (has_opted_out(netns_cookie)) {
		COUNT(opted_out);
		return VERDICT_PASS;
	}
	/* An answer to a client of this node whom the edge has lent the Service's name
	 * (lib/outbound.h); of what is none the packet path says so. */
	if (edge_serves && frontend->kind == FRONTEND_CLUSTER_IP_OTHER && snat_has(d->port))
		return VERDICT_PASS;
	service = *d;
	flow = set.few ? flow_by_service(&set, &service) : 0;
	if (flow) {
		destination_set(&chosen, &flow->backend, flow->backend_port);
		if (serves(frontend, &chosen, &flow->slot)) {
			flow_ask(&set, flow);
			*d = chosen;
			return VERDICT_BALANCE;
		}
		flow_clear(flow);
	}
	if (!backend_of_connect(ctx->sk, frontend, &service, &chosen)) {
		verdict = decide(frontend, source, netns_cookie, &decision);
		if (verdict != VERDICT_BALANCE || !decision)
			return verdict;
		client_of_namespace(netns_cookie, address_is_v4(&d->address), &client);
		if (!choose_for_flow(frontend, decision, &client, &set, &chosen)) {
			COUNT(datagram_fault);
			return VERDICT_REJECT;
		}
	}
	COUNT(flow_new);
	flow_begin(ctx->sk, &set, &service, &chosen);
	*d = chosen;
	return VERDICT_BALANCE;
}

static __always_inline int
sendmsg_hook(struct bpf_sock_addr *ctx, struct destination *d, struct address *source,
	     void (*write)(struct bpf_sock_addr *, const struct destination *))
{
	if (ctx->protocol != IPPROTO_UDP)
		return HOOK_PROCEED;
	switch (sendmsg_verdict(ctx, d, source)) {
	case VERDICT_BALANCE:
		COUNT(datagram_balance);
		write(ctx, d);
		return HOOK_PROCEED;
	case VERDICT_REJECT:
		COUNT(datagram_reject);
		bpf_set_retval(-ECONNREFUSED);
		return HOOK_REFUSE;
	case VERDICT_DROP:
		COUNT(datagram_drop);
		bpf_set_retval(-EPERM);
		return HOOK_REFUSE;
	default:
		COUNT(datagram_pass);
		return HOOK_PROCEED;
	}
}

/* The service address behind the backend that a datagram came from. A question
 * that was asked while the backend served is still answered under the name it
 * was asked, once; a Service that is gone has no name. */
static __always_inline int flow_name(struct bpf_sock_addr *ctx, struct destination *d)
{
	struct destination service, backend;
	struct frontend *frontend;
	struct flow_set set;
	struct flow *flow;
	__u32 asked;
	int holds;

	flows_of(ctx->sk, &set);
	flow = set.few ? flow_by_backend(&set, d) : 0;
	if (!flow || connected_to(ctx->sk, &d->address, d->port))
		return 0;
	asked = flow->waiting;
	flow_answered(flow);
	if (flow_plain(flow))
		return 0;
	flow_ends(flow, &service, &backend);
	frontend = frontend_of(&service, IPPROTO_UDP);
	holds = frontend && serves(frontend, &backend, &flow->slot);
	if (!holds)
		flow_clear(flow);
	if (!frontend || (!holds && !asked))
		return 0;
	*d = service;
	return 1;
}

static __always_inline int recvmsg_hook(struct bpf_sock_addr *ctx, struct destination *d,
					void (*write)(struct bpf_sock_addr *,
						      const struct destination *))
{
	if (ctx->protocol == IPPROTO_UDP && (connected_name(ctx, d) || flow_name(ctx, d))) {
		write(ctx, d);
		COUNT(datagram_name);
	}
	return HOOK_PROCEED; /* the kernel accepts nothing else here */
}
