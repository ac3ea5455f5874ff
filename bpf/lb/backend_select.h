/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Selects a backend from a frontend's decision. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/affinity.h"
#include "lb/maps.h"
#include "lb/members.h"
#include "lb/types.h"
#include "set_table/set_table.h"

/* Selects a slot. A set holds each ID as often as the backend's weight requires, or as package
 * maglev has filled the table, so a uniform choice of slots is a weighted choice of backends. The
 * multiplication maps 32 bits onto the slots without the bias of a remainder: each slot's
 * share is exact to count / 2^32. */
static __always_inline __u32 chosen_slot(__u32 count, __u32 choice)
{
	return ((__u64)choice * count) >> 32;
}

/* Returns the ID in the slot of a set that 32 bits select. */
static __always_inline __u32 slot_choice(const struct decision *decision, __u32 choice)
{
	return slot_backend(decision->first + chosen_slot(decision->count, choice));
}

/* Returns whether a backend is still where it was last seen; it nearly always is. */
static __always_inline int affinity_hint_valid(const struct affinity_seen *entry,
					       const struct slot_range *members)
{
	return entry->slot < members->count &&
	       slot_backend(members->first + entry->slot) == entry->backend;
}

/* Returns whether the backend of an affinity entry is still in the set; affinity ends otherwise
 * (R27). */
static __always_inline int affinity_valid(struct affinity_seen *entry,
					  const struct slot_range *members)
{
	struct backend *backend;
	__u32 slot;

	if (affinity_hint_valid(entry, members))
		return 1;
	backend = bpf_map_lookup_elem(&backends, &entry->backend);
	if (!backend)
		return 0;
	slot = member_slot(members, &backend->address, backend->port) - members->first;
	if (slot >= members->count || slot_backend(members->first + slot) != entry->backend)
		return 0;
	entry->slot = slot;
	return 1;
}

static __always_inline __u32 now_seconds(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000ull; /* Linux 5.11 */
}

/* Returns the backend that this client used within the timeout, or 0. Each new connection restarts
 * the timeout (R27). Global function: the verifier checks it once. */
__noinline __u32 affinity_backend(struct affinity_query *q, const struct frontend *frontend,
				  enum source_class class)
{
	struct affinity_seen entry;
	struct slot_range members;

	if (!q || !frontend)
		return 0;
	affinity_read(&q->entry.key, q->sum, &entry);
	if (entry.at == AFFINITY_NOT_FOUND) {
		q->seen = 0;
		return 0;
	}
	q->seen = affinity_version(entry.backend, entry.last_used);
	members_of(frontend, lists_of(frontend), class, &members);
	/* Whole seconds, because the clock is coarse. Signed, because another CPU may have stored a
	 * later second than the one read here. */
	if ((__s32)(q->entry.last_used - entry.last_used) > (__s32)q->timeout ||
	    !affinity_valid(&entry, &members))
		return 0;
	if (!dry_run) {
		affinity_refresh(q, &entry);
		COUNT(affinity_hit);
	}
	return entry.backend;
}

/* Prepares to look up a client's entry. */
static __always_inline void affinity_query_set(struct affinity_query *q,
					       const struct frontend *frontend,
					       const struct address *client)
{
	__u64 now = bpf_ktime_get_coarse_ns(); /* Linux 5.11 */

	__builtin_memset(q, 0, sizeof(*q));
	q->entry.key.client = *client;
	q->entry.key.service = frontend->service;
	q->entry.last_used = now / 1000000000ull;
	q->timeout = frontend->affinity_seconds;
	q->now = tick_of_ns(now);
	q->sum = affinity_sum(&q->entry.key);
}

/* Returns the backend of a client's affinity entry, or 0. */
static __always_inline __u32 affinity_of(const struct frontend *frontend, enum source_class class,
					 const struct address *client)
{
	struct affinity_query q;

	if (!frontend->affinity_seconds)
		return 0;
	affinity_query_set(&q, frontend, client);
	return affinity_backend(&q, frontend, class);
}

/* Of two concurrent first connections of a client one stores its choice, and the other adopts it.
 * If they replace an expired entry, both adopt the last writer's choice. */
static __always_inline __u32 select_with_affinity(const struct frontend *frontend,
						  enum source_class class,
						  const struct address *client, __u32 choice)
{
	const struct decision *decision = decision_for(frontend, class);
	struct affinity_query q;
	__u32 backend;

	affinity_query_set(&q, frontend, client);
	backend = affinity_backend(&q, frontend, class);
	if (backend)
		return backend;
	q.entry.slot = chosen_slot(decision->count, choice); /* in a Maglev table: not a hint */
	q.entry.backend = slot_backend(decision->first + q.entry.slot);
	if (dry_run || affinity_store(&q) == AFFINITY_STORED)
		return q.entry.backend;
	backend = affinity_backend(&q, frontend, class);
	if (backend)
		return backend;
	COUNT(affinity_failed);
	return q.entry.backend;
}

/* Returns the ID of a backend for a class of clients that has a backend set, or 0 if the tables are
 * damaged. `choice` decides for a client without affinity: 32 random bits, or the hash of a flow.
 */
__noinline __u32 select_backend(const struct frontend *frontend, enum source_class class,
				const struct address *client, __u32 choice)
{
	if (!frontend || !client)
		return 0;
	if (frontend->affinity_seconds)
		return select_with_affinity(frontend, class, client, choice);
	return slot_choice(decision_for(frontend, class), choice);
}

static __always_inline struct backend *backend_lookup(__u32 id)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &id);

	return backend && backend->port ? backend : 0;
}
