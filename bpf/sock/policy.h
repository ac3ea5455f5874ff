/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The verdict for a socket's destination. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "filter/prefilter_bits.h"
#include "lb/address.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "sock/maps.h"
#include "sock/types.h"

enum { HOOK_REFUSE = 0, HOOK_PROCEED = 1 };

/* The caller: a hook, or an explanation of what a hook would do. */
struct caller {
	struct bpf_sock_addr *ctx; /* 0: an explanation, for a socket in... */
	__u64 netns_cookie;	   /* ... this network namespace */
};

static __always_inline __u64 caller_netns(const struct caller *caller)
{
	return caller->ctx ? bpf_get_netns_cookie(caller->ctx) : caller->netns_cookie;
}

/* Returns the verdict for a source if a frontend has loadBalancerSourceRanges; BALANCE: no
 * objection. The source is unspecified if the socket is not bound: its route has not been chosen
 * yet. Global function: the verifier checks it once. */
__noinline int source_verdict(const struct frontend *frontend, const struct address *source,
			      int node)
{
	if (!frontend || !source)
		return VERDICT_DROP;
	/* The node uses its own address as source to reach it. Otherwise the source of an unbound
	 * socket is not known yet: the packet path decides. */
	if (address_is_unspecified(source) && node && frontend->flags & FRONTEND_OWN_ADDRESS)
		source = &frontend->key.address;
	if (address_is_unspecified(source))
		return VERDICT_PASS;
	return source_admitted(frontend->source_set, source) ? VERDICT_BALANCE : VERDICT_DROP;
}

/* Returns the verdict for a destination with a frontend, and sets *class and *reason; a verdict
 * other than BALANCE is final. */
static __always_inline enum verdict socket_verdict(const struct frontend *frontend,
						   const struct address *source, __u64 netns_cookie,
						   enum source_class *class,
						   enum connect_reason *reason)
{
	int node = netns_cookie == host_netns_cookie;
	const struct decision *decision;
	enum verdict verdict;

	*class = node ? FROM_NODE : FROM_POD;

	if (!node && frontend->flags & FRONTEND_BY_PACKET) {
		*reason = CONNECT_MASQUERADED;
		return VERDICT_PASS;
	}
	if (frontend->source_set) {
		verdict = source_verdict(frontend, source, node);
		*reason = verdict == VERDICT_PASS ? CONNECT_SOURCE_UNKNOWN : CONNECT_SOURCE;
		if (verdict != VERDICT_BALANCE)
			return verdict;
	}
	*reason = CONNECT_DECISION;
	decision = &frontend->decisions[node ? FROM_NODE : FROM_POD];
	if (decision->count)
		return VERDICT_BALANCE;
	return decision->verdict;
}

/* Returns whether a destination certainly has no frontend and is in no ServiceCIDR. frontend_of
 * looks up other addresses for 127.0.0.0/8. */
static __always_inline int destination_prefilter_miss(const struct destination *d)
{
	if (address_is_v4(&d->address) && d->address.bytes[12] == 127)
		return 0;
	return !prefilter_may_match(&d->address, d->port);
}

/* Returns the verdict for a destination without a frontend: PASS, unless the address is in a
 * ServiceCIDR (R21). Sets *reason. */
static __always_inline enum verdict verdict_without_frontend(const struct caller *caller,
							     const struct destination *d,
							     enum connect_reason *reason)
{
	*reason = CONNECT_NO_FRONTEND;
	if (!in_service_network(&d->address))
		return VERDICT_PASS;
	if (!has_opted_out(caller_netns(caller)))
		return VERDICT_DROP;
	*reason = CONNECT_OPTED_OUT;
	return VERDICT_PASS;
}
