/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a frontend's decision to one backend. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "affinity.h"
#include "members.h"
#include "tables.h"

/* Slots hold ids as often as the backends' weights ask for, or as package maglev has
 * filled them, so that an even choice of slots is a weighted choice of backends. The multiplication
 * maps 32 random bits onto the slots without the bias of a remainder: each slot's share is exact
 * within count / 2^32. */
static __always_inline __u32 chosen_slot(const struct decision *decision, __u32 random)
{
	return ((__u64)random * decision->count) >> 32;
}

/* Where the members of a set stand: in its slots, or in a list before them. */
static __always_inline void members_of(const struct frontend *frontend,
				       const struct decision *decision, struct decision *members)
{
	*members = *decision;
	if (!(frontend->flags & FRONTEND_MAGLEV) || !decision->count)
		return;
	members->count = slot_backend(decision->first - 1);
	members->first = decision->first - 1 - members->count;
}

/* Where those stand that a frontend keeps. */
static __always_inline void kept_by(const struct frontend *frontend, struct decision *kept)
{
	kept->first = frontend->kept_first;
	kept->count = kept->first ? slot_backend(kept->first - 1) : 0;
}

/* Whether a backend is where it was seen last, which is nearly always so. */
static __always_inline int affinity_hint_holds(const struct affinity_seen *entry,
					       const struct decision *members)
{
	return entry->slot < members->count &&
	       slot_backend(members->first + entry->slot) == entry->backend;
}

/* Affinity holds as long as the backend is in the set (R27). */
static __always_inline int affinity_holds(struct affinity_seen *entry,
					  const struct decision *members)
{
	struct backend *backend;
	__u32 slot;

	if (affinity_hint_holds(entry, members))
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

/* The backend this client had within the timeout, or 0. Each new connection
 * begins the timeout anew (R27). Not static: the verifier looks at it once. */
__noinline __u32 affinity_backend(struct affinity_query *q, const struct frontend *frontend,
				  const struct decision *decision)
{
	struct affinity_seen entry;
	struct decision members;

	if (!q || !frontend || !decision)
		return 0;
	affinity_read(&q->entry.key, q->sum, &entry);
	if (entry.at == AFFINITY_NOWHERE) {
		q->seen = 0;
		return 0;
	}
	q->seen = affinity_version(entry.backend, entry.last_used);
	members_of(frontend, decision, &members);
	/* Whole seconds: what is 1 s apart may have been a moment. Signed: another CPU
	 * may have stored a later second than the one read here. */
	if ((__s32)(q->entry.last_used - entry.last_used) > (__s32)q->timeout ||
	    !affinity_holds(&entry, &members))
		return 0;
	if (!dry_run) {
		affinity_refresh(q, &entry);
		COUNT(affinity_hit);
	}
	return entry.backend;
}

/* Of two first connections at once one stores its choice, and the other follows
 * it. Where an old entry is replaced, the last one to do so is followed. */
static __always_inline __u32 select_with_affinity(const struct frontend *frontend,
						  const struct decision *decision,
						  const struct address *client, __u32 random)
{
	__u64 now = bpf_ktime_get_coarse_ns(); /* Linux 5.11 */
	struct affinity_query q = {
		.entry = {.key = {.client = *client, .service = frontend->service},
			  .last_used = now / 1000000000ull},
		.timeout = frontend->affinity_seconds,
		.now = tick_of_ns(now),
	};
	__u32 backend;

	q.sum = affinity_sum(&q.entry.key);
	backend = affinity_backend(&q, frontend, decision);
	if (backend)
		return backend;
	q.entry.slot = chosen_slot(decision, random); /* in a Maglev table: no hint */
	q.entry.backend = slot_backend(decision->first + q.entry.slot);
	if (dry_run || affinity_store(&q) == AFFINITY_STORED)
		return q.entry.backend;
	backend = affinity_backend(&q, frontend, decision);
	if (backend)
		return backend;
	COUNT(affinity_failed);
	return q.entry.backend;
}

/* A backend's id, or 0 if the tables are damaged. `random` are 32 bits that choose
 * for a client that has none. */
__noinline __u32 select_backend(const struct frontend *frontend, const struct decision *decision,
				const struct address *client, __u32 random)
{
	if (!frontend || !decision || !client)
		return 0;
	if (frontend->affinity_seconds)
		return select_with_affinity(frontend, decision, client, random);
	return slot_backend(decision->first + chosen_slot(decision, random));
}

static __always_inline struct backend *backend_lookup(__u32 id)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &id);

	return backend && backend->port ? backend : 0;
}
