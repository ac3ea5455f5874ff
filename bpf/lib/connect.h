/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* connect(2) of TCP and UDP sockets, and the names of their peers. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "decide.h"
#include "flow.h"
#include "record.h"
#include "select.h"

/* The backend that a UDP socket has for a service, by connect() or by its
 * datagrams, if it still serves (R29). */
static __always_inline int backend_of_socket(struct bpf_sock *sk, const struct frontend *frontend,
					     const struct destination *service,
					     struct destination *backend)
{
	struct flow_set set;
	struct flow *flow;

	if (backend_of_connect(sk, frontend, service, backend))
		return 1;
	flows_of(sk, &set);
	flow = set.few ? flow_by_service(&set, service) : 0;
	if (!flow)
		return 0;
	destination_set(backend, &flow->backend, flow->backend_port);
	return serves(frontend, backend, &flow->slot);
}

/* VERDICT_BALANCE: `d` has been rewritten. */
static __always_inline enum verdict connect_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d)
{
	struct destination service, chosen;
	const struct decision *decision = 0;
	struct address source, client;
	struct frontend *frontend;
	struct backend *backend;
	enum verdict verdict;
	__u64 netns_cookie;

	if (ctx->sk->mark == MARK_AGENT)
		return VERDICT_PASS;
	socket_address(ctx->sk, &source);
	destination_meant(d, &source);
	frontend = frontend_of(d, ctx->protocol);
	if (!frontend)
		return verdict_without_frontend(ctx, d);
	netns_cookie = bpf_get_netns_cookie(ctx);
	if (has_opted_out(netns_cookie)) {
		COUNT(opted_out);
		return VERDICT_PASS;
	}
	/* A UDP socket's connect() sends nothing. Programs use it to learn their own
	 * address, whatever the port (getaddrinfo, RFC 6724 section 5). What they send
	 * then is for the packet path to reject. */
	if (ctx->protocol == IPPROTO_UDP && frontend->kind == FRONTEND_CLUSTER_IP_OTHER)
		return VERDICT_PASS;
	service = *d;
	if (ctx->protocol != IPPROTO_UDP ||
	    !backend_of_socket(ctx->sk, frontend, &service, &chosen)) {
		verdict = decide(frontend, &source, netns_cookie, &decision);
		if (verdict != VERDICT_BALANCE || !decision)
			return verdict;
		client_of_namespace(netns_cookie, address_is_v4(&d->address), &client);
		backend = backend_lookup(
			select_backend(frontend, decision, &client, bpf_get_prandom_u32()));
		if (!backend) {
			COUNT(connect_fault);
			return VERDICT_REJECT;
		}
		destination_set(&chosen, &backend->address, backend->port);
	}
	record_connect(ctx->sk, &service, &chosen);
	*d = chosen;
	return VERDICT_BALANCE;
}

/* `write` puts a rewritten destination back. */
static __always_inline int connect_hook(struct bpf_sock_addr *ctx, struct destination *d,
					void (*write)(struct bpf_sock_addr *,
						      const struct destination *))
{
	enum verdict verdict;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return HOOK_PROCEED;
	verdict = connect_verdict(ctx, d);
	if (verdict == VERDICT_BALANCE) {
		COUNT(connect_balance);
		write(ctx, d);
		return HOOK_PROCEED;
	}
	switch (verdict) {
	case VERDICT_REJECT:
		COUNT(connect_reject);
		bpf_set_retval(-ECONNREFUSED);
		return HOOK_REFUSE;
	case VERDICT_DROP:
		/* A packet would be dropped in silence; waiting for the timeout serves
		 * nobody, so this is what a local firewall rule answers. */
		COUNT(connect_drop);
		bpf_set_retval(-EPERM);
		return HOOK_REFUSE;
	default:
		forget_connect(ctx->sk, d);
		COUNT(connect_pass);
		return HOOK_PROCEED;
	}
}

static __always_inline int getpeername_hook(struct bpf_sock_addr *ctx, struct destination *d,
					    void (*write)(struct bpf_sock_addr *,
							  const struct destination *))
{
	if (connected_name(ctx, d)) {
		write(ctx, d);
		COUNT(peer_name);
	}
	return HOOK_PROCEED; /* the kernel accepts nothing else here */
}
