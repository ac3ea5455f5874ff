/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether a backend still serves a frontend. UDP flows (R29) depend on it, and TCP connections that
 * are reset after the drain time. */
#pragma once

#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/members.h"
#include "lb/types.h"

/* Returns whether a slot has a backend with this address and port; port 0 matches any. */
static __always_inline int slot_has(__u32 slot, const struct address *address, __be16 port)
{
	struct backend *backend = backend_lookup(slot_backend(slot));

	return backend && (!port || backend->port == port) &&
	       address_equal(&backend->address, address);
}

/* Looks up a backend in one set. Sets *slot if it is there. */
static __always_inline int set_has(const struct slot_range *members,
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
static __always_inline int same_range(const struct slot_range *a, const struct slot_range *b)
{
	return a->first == b->first && a->count == b->count;
}

static __always_inline int within(__u32 slot, const struct slot_range *range)
{
	return slot - range->first < range->count;
}

/* Returns whether a backend is in one of the frontend's sets or is retained. *slot is a hint of its
 * position, which is nearly always right, and is updated. Global function: the verifier checks it
 * once, and not for each path to a call. */
__noinline int serves(const struct frontend *frontend, const struct destination *backend,
		      __u32 *slot)
{
	struct slot_range pod, node, outside, retained = {};
	const struct frontend_lists *lists;

	if (!frontend || !backend || !slot)
		return 0;
	lists = lists_of(frontend);
	members_of(frontend, lists, FROM_POD, &pod);
	members_of(frontend, lists, FROM_NODE, &node);
	members_of(frontend, lists, FROM_OUTSIDE, &outside);
	if (lists)
		retained = lists->retained;
	if ((within(*slot, &pod) || within(*slot, &node) || within(*slot, &outside) ||
	     within(*slot, &retained)) &&
	    slot_has(*slot, &backend->address, backend->port))
		return 1;
	return set_has(&pod, backend, slot) ||
	       (!same_range(&node, &pod) && set_has(&node, backend, slot)) ||
	       (!same_range(&outside, &node) && set_has(&outside, backend, slot)) ||
	       set_has(&retained, backend, slot);
}

/* Returns whether the tables still confirm a recorded service and backend. */
__noinline int still_serves(const struct destination *service, __u32 protocol,
			    const struct destination *backend, __u32 *slot)
{
	struct frontend *frontend;

	if (!service || !backend || !slot)
		return 0;
	frontend = frontend_of(service, protocol);
	return frontend && serves(frontend, backend, slot);
}
