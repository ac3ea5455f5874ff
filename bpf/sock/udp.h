/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* sendmsg(2) and recvmsg(2) of UDP sockets: each datagram has its own destination; the socket's
 * flows (sock/udp_sock_flows.h) keep the backends. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/snat_ports.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/serving.h"
#include "lb/types.h"
#include "sock/maps.h"
#include "sock/policy.h"
#include "sock/sock_record.h"
#include "sock/socket.h"
#include "sock/types.h"
#include "sock/udp_sock_flows.h"

/* Whether the edge is active (edge/ingress.h). Set by the loader. */
const volatile __u8 edge_serves = 0;

/* Notes a datagram to an address without a Service, if the address is also the backend of a flow of
 * the socket: their replies have to be distinguished. */
static __always_inline void note_direct_datagram(struct bpf_sock *sk, struct udp_flow_set *set,
						 const struct destination *d)
{
	struct udp_flow *flow = flow_by_service(set, d), *other;

	if (flow && flow_is_direct(flow)) {
		flow_count_request(set, flow);
		return;
	}
	if (flow)
		flow_clear(flow); /* the address is no longer a Service's */
	other = flow_by_backend(set, d);
	if (!other)
		return;
	if (flow_is_valid(other))
		flow_add(sk, set, d, d);
	else
		flow_clear(other);
}

/* How often to retry when the selected backend is that of another flow of the socket. */
#define OTHER_CHOICES 3

/* Selects a backend for a socket's first datagram to a service; if possible one that no other flow
 * of the socket uses, because replies are matched by their source. */
static __always_inline int select_for_flow(const struct frontend *frontend, enum source_class class,
					   const struct address *client, struct udp_flow_set *set,
					   struct destination *chosen)
{
	for (int i = 0; i <= OTHER_CHOICES; i++) {
		struct backend *backend = backend_lookup(
			select_backend(frontend, class, client, bpf_get_prandom_u32()));

		if (!backend)
			return 0;
		destination_set(chosen, &backend->address, backend->port);
		if (frontend->affinity_seconds || !set->first || !flow_by_backend(set, chosen))
			return 1;
	}
	return 1;
}

static __always_inline enum verdict sendmsg_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d, struct address *source)
{
	const struct caller caller = {.ctx = ctx};
	struct destination service, chosen;
	enum connect_reason reason;
	enum source_class class;
	struct frontend *frontend;
	struct address client;
	struct udp_flow_set set;
	enum verdict verdict;
	__u64 netns_cookie;
	struct udp_flow *flow;

	if (address_is_unspecified(source))
		socket_address(ctx->sk, source);
	destination_resolve(d, source);
	/* A connected socket keeps its peer. An AF_INET6 socket with an IPv4 peer calls this hook
	 * on each send(2) (udpv6_sendmsg). */
	if (connected_to(ctx->sk, &d->address, d->port))
		return VERDICT_PASS;
	udp_flows_of(ctx->sk, &set);
	frontend = 0;
	verdict = VERDICT_PASS;
	if (!destination_prefilter_miss(d)) {
		frontend = frontend_of(d, IPPROTO_UDP);
		if (!frontend)
			verdict = verdict_without_frontend(&caller, d, &reason);
	}
	if (!frontend) {
		if (set.first && verdict == VERDICT_PASS)
			note_direct_datagram(ctx->sk, &set, d);
		return verdict;
	}
	netns_cookie = bpf_get_netns_cookie(ctx);
	if (has_opted_out(netns_cookie)) {
		COUNT(opted_out);
		return VERDICT_PASS;
	}
	/* A reply to a client on this node, to a SNAT port with the Service's address
	 * (edge/egress.h). If it is something else, the packet path rejects it. */
	if (edge_serves && frontend->kind == FRONTEND_CLUSTER_IP_OTHER && snat_has(d->port))
		return VERDICT_PASS;
	service = *d;
	flow = set.first ? flow_by_service(&set, &service) : 0;
	if (flow) {
		destination_set(&chosen, &flow->backend, flow->backend_port);
		if (serves(frontend, &chosen, &flow->slot)) {
			flow_count_request(&set, flow);
			*d = chosen;
			return VERDICT_BALANCE;
		}
		flow_clear(flow);
	}
	if (!backend_of_connect(ctx->sk, frontend, &service, &chosen)) {
		verdict = socket_verdict(frontend, source, netns_cookie, &class, &reason);
		if (verdict != VERDICT_BALANCE)
			return verdict;
		client_of_namespace(netns_cookie, address_is_v4(&d->address), &client);
		if (!select_for_flow(frontend, class, &client, &set, &chosen)) {
			COUNT(datagram_no_backend);
			return VERDICT_REJECT;
		}
	}
	COUNT(flow_new);
	flow_add(ctx->sk, &set, &service, &chosen);
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

/* Replaces the backend by the Service in a received datagram. A reply to a request that was sent
 * while the backend served still gets the Service's address, once; an address that is no longer a
 * Service's is not restored. */
static __always_inline int flow_name(struct bpf_sock_addr *ctx, struct destination *d)
{
	struct destination service, backend;
	struct frontend *frontend;
	struct udp_flow_set set;
	struct udp_flow *flow;
	__u32 asked;
	int holds;

	udp_flows_of(ctx->sk, &set);
	flow = set.first ? flow_by_backend(&set, d) : 0;
	if (!flow || connected_to(ctx->sk, &d->address, d->port))
		return 0;
	asked = flow->unanswered;
	flow_count_reply(flow);
	if (flow_is_direct(flow))
		return 0;
	flow_addresses(flow, &service, &backend);
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
	return HOOK_PROCEED; /* the kernel accepts no other value here */
}
