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

/* Whether a backend is where it was seen last, which is nearly always so. */
static __always_inline int affinity_hint_holds(const struct affinity_entry *entry,
					       const struct decision *members)
{
	return entry->slot < members->count &&
	       slot_backend(members->first + entry->slot) == entry->backend;
}

/* Affinity holds as long as the backend is in the set (R27). */
static __always_inline int affinity_holds(struct affinity_entry *entry,
					  const struct decision *members)
{
	struct slot_search search = {.backend = entry->backend, .first = members->first};

	if (affinity_hint_holds(entry, members))
		return 1;
	bpf_loop(members->count, slot_search_step, &search, 0);
	if (!search.found)
		return 0;
	entry->slot = search.found - 1;
	return 1;
}

static __always_inline __u32 now_seconds(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000ull; /* Linux 5.11 */
}

static __always_inline __u32 affinity_tag(const struct affinity_key *key)
{
	const __u32 *client = address_words_const(&key->client);

	return client[0] ^ client[1] ^ client[2] ^ client[3] ^ key->service;
}

/* The backend this client had within the timeout, or 0. Each new connection
 * begins the timeout anew (R27). */
static __always_inline __u32 affinity_backend(const struct affinity_key *key, __u32 timeout,
					      const struct decision *members, __u32 now,
					      struct affinity_entry *stored)
{
	struct affinity_entry entry = *stored;

	/* Whole seconds: what is 1 s apart may have been a moment. Signed: another CPU
	 * may have stored a later second than the one read here. */
	if (entry.tag != affinity_tag(key) || (__s32)(now - entry.last_used) > (__s32)timeout ||
	    !affinity_holds(&entry, members))
		return 0;
	if (dry_run)
		return entry.backend;
	/* Should the element have become another client's meanwhile, then that one's
	 * timeout begins anew, and the slot is only a hint. */
	if (stored->last_used != now)
		stored->last_used = now;
	if (stored->slot != entry.slot)
		stored->slot = entry.slot;
	return entry.backend;
}

/* Of two first connections at once one stores its choice, and the other follows
 * it. Where an old entry is replaced, the last one to do so is followed. */
static __always_inline __u32 select_with_affinity(const struct frontend *frontend,
						  const struct decision *decision,
						  const struct address *client, __u32 random)
{
	struct affinity_key key = {.client = *client, .service = frontend->service};
	struct affinity_entry chosen = {.tag = affinity_tag(&key), .last_used = now_seconds()};
	struct affinity_entry *stored = bpf_map_lookup_elem(&affinity, &key);
	__u32 flags = stored ? BPF_ANY : BPF_NOEXIST;
	struct decision members;

	members_of(frontend, decision, &members);
	if (stored) {
		__u32 backend = affinity_backend(&key, frontend->affinity_seconds, &members,
						 chosen.last_used, stored);

		if (backend) {
			if (!dry_run)
				COUNT(affinity_hit);
			return backend;
		}
	}
	chosen.slot = chosen_slot(decision, random); /* in a Maglev table: no hint */
	chosen.backend = slot_backend(decision->first + chosen.slot);
	if (dry_run)
		return chosen.backend;
	if (!bpf_map_update_elem(&affinity, &key, &chosen, flags))
		return chosen.backend;
	stored = bpf_map_lookup_elem(&affinity, &key);
	if (stored && stored->tag == chosen.tag) {
		struct affinity_entry first = *stored;

		if (affinity_holds(&first, &members)) {
			COUNT(affinity_hit);
			return first.backend;
		}
	}
	COUNT(affinity_failed);
	return chosen.backend;
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
