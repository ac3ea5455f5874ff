/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a program gets that asks for an address with a socket. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "frontend.h"
#include "socket.h"
#include "tables.h"

enum { HOOK_REFUSE = 0, HOOK_PROCEED = 1 };

/* The verdict for a source where a frontend does not admit all: BALANCE is none. The source is
 * what is known of it before the route is chosen: unspecified where the socket is not bound.
 * Not static: the verifier looks at it once. */
__noinline int source_verdict(const struct frontend *frontend, const struct address *source,
			      int node)
{
	if (!frontend || !source)
		return VERDICT_DROP;
	/* The node asks its own address from that address. Else an unbound
	 * socket's source is not known yet: the packet tells. */
	if (address_is_unspecified(source) && node && frontend->flags & FRONTEND_OWN_ADDRESS)
		source = &frontend->key.address;
	if (address_is_unspecified(source))
		return VERDICT_PASS;
	return source_admitted(frontend->source_set, source) ? VERDICT_BALANCE : VERDICT_DROP;
}

/* The decision for a destination; a verdict other than BALANCE is final. */
static __always_inline enum verdict decide(const struct frontend *frontend,
					   const struct address *source, __u64 netns_cookie,
					   const struct decision **decision)
{
	int node = netns_cookie == host_netns_cookie;
	enum verdict verdict;

	if (frontend->source_set) {
		verdict = source_verdict(frontend, source, node);
		if (verdict != VERDICT_BALANCE)
			return verdict;
	}
	*decision = &frontend->decisions[node ? FROM_NODE : FROM_POD];
	if ((*decision)->count)
		return VERDICT_BALANCE;
	return (*decision)->verdict;
}

/* What no frontend has: nobody's business, or an address that belongs to
 * Services (R21). */
static __always_inline enum verdict verdict_without_frontend(struct bpf_sock_addr *ctx,
							     const struct destination *d)
{
	if (!in_service_network(&d->address))
		return VERDICT_PASS;
	return has_opted_out(bpf_get_netns_cookie(ctx)) ? VERDICT_PASS : VERDICT_DROP;
}
