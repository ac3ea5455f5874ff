/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a frontend's decision to one backend. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "tables.h"

static __always_inline __u32 slot_backend(__u32 slot)
{
	__u32 *id = bpf_map_lookup_elem(&slots, &slot);

	return id ? *id : 0;
}

/* Slots hold ids as often as the backends' weights ask for, so that an even
 * choice of slots is a weighted choice of backends. The multiplication maps 32
 * random bits onto the slots without the bias of a remainder: each slot's
 * share is exact within count / 2^32. */
static __always_inline __u32 random_slot(const struct decision *decision)
{
	return ((__u64)bpf_get_prandom_u32() * decision->count) >> 32;
}

struct slot_search {
	__u32 backend;
	__u32 first;
	__u32 found; /* slot within the set + 1; 0: none */
};

static long slot_search_step(__u32 slot, struct slot_search *search)
{
	if (slot_backend(search->first + slot) != search->backend)
		return 0;
	search->found = slot + 1;
	return 1;
}

/* Affinity holds as long as the backend is in the set (R27). Where it was seen
 * last is nearly always where it still is. */
static __always_inline int affinity_holds(struct affinity_entry *entry,
					  const struct decision *decision)
{
	struct slot_search search = {.backend = entry->backend, .first = decision->first};

	if (entry->slot < decision->count &&
	    slot_backend(decision->first + entry->slot) == entry->backend)
		return 1;
	bpf_loop(decision->count, slot_search_step, &search, 0);
	if (!search.found)
		return 0;
	entry->slot = search.found - 1;
	return 1;
}

static __always_inline __u32 now_seconds(void)
{
	return bpf_ktime_get_ns() / 1000000000ull;
}

/* The backend this client had within the timeout, else a new one, remembered.
 * Each new connection begins the timeout anew (R27). Of two first connections
 * at once one stores its choice, and the other follows it. */
static __always_inline __u32 select_with_affinity(const struct frontend *frontend,
						  const struct decision *decision,
						  const struct address *client)
{
	struct affinity_key key = {.client = *client, .service = frontend->service};
	__u32 now = now_seconds();
	struct affinity_entry chosen = {};

	for (int attempt = 0; attempt < 2; attempt++) {
		struct affinity_entry *stored = bpf_map_lookup_elem(&affinity, &key);
		long err;

		if (stored) {
			struct affinity_entry entry = *stored;

			/* Whole seconds: it may last up to one longer, never less.
			 * Negative if another CPU was here after `now` was read. */
			if ((__s32)(now - entry.last_used) <= (__s32)frontend->affinity_seconds &&
			    affinity_holds(&entry, decision)) {
				COUNT(affinity_hit);
				if (entry.last_used == now && entry.slot == stored->slot)
					return entry.backend;
				entry.last_used = now;
				bpf_map_update_elem(&affinity, &key, &entry, BPF_ANY);
				return entry.backend;
			}
		}
		chosen.slot = random_slot(decision);
		chosen.backend = slot_backend(decision->first + chosen.slot);
		chosen.last_used = now;
		err = bpf_map_update_elem(&affinity, &key, &chosen, stored ? BPF_ANY : BPF_NOEXIST);
		if (!err)
			return chosen.backend;
	}
	COUNT(affinity_failed);
	return chosen.backend;
}

/* A backend's id, or 0 if the tables are damaged. */
static __always_inline __u32 select_backend(const struct frontend *frontend,
					    const struct decision *decision,
					    const struct address *client)
{
	if (frontend->affinity_seconds)
		return select_with_affinity(frontend, decision, client);
	return slot_backend(decision->first + random_slot(decision));
}

static __always_inline struct backend *backend_lookup(__u32 id)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &id);

	return backend && backend->port ? backend : 0;
}
