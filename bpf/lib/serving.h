/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether a backend still serves a frontend: what a UDP flow hangs on (R29), and
 * a TCP connection that is to be reset after its drain time. */
#pragma once

#include "frontend.h"
#include "select.h"

/* Port 0 is any. */
static __always_inline int slot_has(__u32 slot, const struct address *address, __be16 port)
{
	struct backend *backend = backend_lookup(slot_backend(slot));

	return backend && (!port || backend->port == port) &&
	       address_equal(&backend->address, address);
}

/* Looks a backend up in one set. `slot` is where it is, and else unchanged. */
static __always_inline int set_has(const struct decision *members,
				   const struct destination *backend, __u32 *slot)
{
	__u32 at;

	if (!members->count)
		return 0;
	at = member_slot(members, &backend->address, backend->port);
	if (at - members->first >= members->count ||
	    !slot_has(at, &backend->address, backend->port))
		return 0;
	*slot = at;
	return 1;
}

/* Without a set `first` is a verdict, so the counts have to be equal too. */
static __always_inline int same_set(const struct decision *a, const struct decision *b)
{
	return a->first == b->first && a->count == b->count;
}

static __always_inline int within(__u32 slot, __u32 first, __u32 count)
{
	return slot - first < count;
}

/* Whether one of the frontend's sets has a backend, or those it keeps. `slot` is
 * where it was last seen, which is nearly always right, and then where it is.
 *
 * Not static, as others below: the verifier looks at such a function once, and
 * not again for each way that leads to a call of it. */
__noinline int serves(const struct frontend *frontend, const struct destination *backend,
		      __u32 *slot)
{
	struct decision pod, node, outside, kept;

	if (!frontend || !backend || !slot)
		return 0;
	members_of(frontend, &frontend->decisions[FROM_POD], &pod);
	members_of(frontend, &frontend->decisions[FROM_NODE], &node);
	members_of(frontend, &frontend->decisions[FROM_OUTSIDE], &outside);
	kept_by(frontend, &kept);
	if ((within(*slot, pod.first, pod.count) || within(*slot, node.first, node.count) ||
	     within(*slot, outside.first, outside.count) ||
	     within(*slot, kept.first, kept.count)) &&
	    slot_has(*slot, &backend->address, backend->port))
		return 1;
	return set_has(&pod, backend, slot) ||
	       (!same_set(&node, &pod) && set_has(&node, backend, slot)) ||
	       (!same_set(&outside, &node) && set_has(&outside, backend, slot)) ||
	       set_has(&kept, backend, slot);
}

/* Whether the tables still bear a record out. */
__noinline int still_serves(const struct destination *service, __u32 protocol,
			    const struct destination *backend, __u32 *slot)
{
	struct frontend *frontend;

	if (!service || !backend || !slot)
		return 0;
	frontend = frontend_of(service, protocol);
	return frontend && serves(frontend, backend, slot);
}
