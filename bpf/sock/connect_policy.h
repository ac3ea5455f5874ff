/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The decision of connect(2), for the hook (sock/connect.h) and for its explanation
 * (connect_explain.bpf.c): both run these functions. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "sock/maps.h"
#include "sock/policy.h"
#include "sock/socket.h"
#include "sock/types.h"

/* A connect(2), and its state during the decision. */
struct connect_call {
	struct caller caller;
	struct address source; /* that the socket is bound to, or unspecified */
	__u32 protocol;
	struct frontend *frontend;
	__u64 netns_cookie; /* of the caller; set with `frontend` */
	enum source_class class;
	struct address client; /* key of session affinity */
	__u32 backend;	       /* ID in `backends` */
	enum connect_reason reason;
};

static __always_inline int connect_serves(__u32 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline enum verdict connect_passes(struct connect_call *call,
						   enum connect_reason reason)
{
	call->reason = reason;
	return VERDICT_PASS;
}

/* Looks up the frontend of a destination. Returns BALANCE if its decision must be applied. */
static __always_inline enum verdict connect_frontend(struct connect_call *call,
						     struct destination *d)
{
	destination_resolve(d, &call->source);
	if (destination_prefilter_miss(d))
		return connect_passes(call, CONNECT_NO_FRONTEND);
	call->frontend = frontend_of(d, call->protocol);
	if (!call->frontend)
		return verdict_without_frontend(&call->caller, d, &call->reason);
	call->netns_cookie = caller_netns(&call->caller);
	if (has_opted_out(call->netns_cookie)) {
		if (!dry_run)
			COUNT(opted_out);
		return connect_passes(call, CONNECT_OPTED_OUT);
	}
	/* connect() of a UDP socket sends nothing. Programs use it to learn their own address, with
	 * any port (getaddrinfo, RFC 6724 section 5). The packet path rejects what they send then.
	 */
	if (call->protocol == IPPROTO_UDP && call->frontend->kind == FRONTEND_CLUSTER_IP_OTHER)
		return connect_passes(call, CONNECT_UDP_OTHER_PORT);
	return VERDICT_BALANCE;
}

/* Applies the decision of the frontend. BALANCE: `d` becomes the backend. */
static __always_inline enum verdict connect_select(struct connect_call *call, struct destination *d)
{
	struct backend *backend;
	enum verdict verdict = socket_verdict(call->frontend, &call->source, call->netns_cookie,
					      &call->class, &call->reason);

	if (verdict != VERDICT_BALANCE)
		return verdict;
	client_of_namespace(call->netns_cookie, address_is_v4(&d->address), &call->client);
	call->backend =
		select_backend(call->frontend, call->class, &call->client, bpf_get_prandom_u32());
	backend = backend_lookup(call->backend);
	if (!backend) {
		if (!dry_run)
			COUNT(connect_no_backend);
		call->reason = CONNECT_NO_BACKEND;
		return VERDICT_REJECT;
	}
	destination_set(d, &backend->address, backend->port);
	return VERDICT_BALANCE;
}
