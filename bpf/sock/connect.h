/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* connect(2) of TCP and UDP sockets, and getpeername(2). */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/serving.h"
#include "lb/types.h"
#include "sock/connect_policy.h"
#include "sock/policy.h"
#include "sock/sock_record.h"
#include "sock/socket.h"
#include "sock/types.h"
#include "sock/udp_sock_flows.h"

/* Returns the backend that a UDP socket uses for a service, by connect() or by its datagrams, if it
 * still serves (R29). */
static __always_inline int backend_of_socket(struct bpf_sock *sk, const struct frontend *frontend,
					     const struct destination *service,
					     struct destination *backend)
{
	struct udp_flow_set set;
	struct udp_flow *flow;

	if (backend_of_connect(sk, frontend, service, backend))
		return 1;
	udp_flows_of(sk, &set);
	flow = set.first ? flow_by_service(&set, service) : 0;
	if (!flow)
		return 0;
	destination_set(backend, &flow->backend, flow->backend_port);
	return serves(frontend, backend, &flow->slot);
}

/* VERDICT_BALANCE: `d` is the backend. */
static __always_inline enum verdict connect_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d)
{
	struct connect_call call = {.caller.ctx = ctx, .protocol = ctx->protocol};
	struct destination service, chosen;
	enum verdict verdict;

	if (ctx->sk->mark == MARK_AGENT)
		return VERDICT_PASS;
	socket_address(ctx->sk, &call.source);
	verdict = connect_frontend(&call, d);
	if (verdict != VERDICT_BALANCE)
		return verdict;
	service = *d;
	if (call.protocol != IPPROTO_UDP ||
	    !backend_of_socket(ctx->sk, call.frontend, &service, &chosen)) {
		verdict = connect_select(&call, d);
		if (verdict != VERDICT_BALANCE)
			return verdict;
		chosen = *d;
	}
	record_connect(ctx->sk, call.frontend->service, &service, &chosen);
	*d = chosen;
	return VERDICT_BALANCE;
}

/* `write` stores a rewritten destination in the context. */
static __always_inline int connect_hook(struct bpf_sock_addr *ctx, struct destination *d,
					void (*write)(struct bpf_sock_addr *,
						      const struct destination *))
{
	enum verdict verdict;

	if (!connect_serves(ctx->protocol))
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
		/* A packet would be dropped silently. EPERM spares the caller the timeout; it is
		 * what a local firewall rule returns. */
		COUNT(connect_drop);
		bpf_set_retval(-EPERM);
		return HOOK_REFUSE;
	default:
		record_forget(ctx->sk, d);
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
	return HOOK_PROCEED; /* the kernel accepts no other value here */
}
