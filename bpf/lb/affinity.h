/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Session affinity: the last backend of each client of a Service (R27).
 *
 * A client's entry is in one of two sets (set_table/set_table.h); in the second one if the first
 * was full of live entries when the client came. An entry is live for the Service's timeout after
 * the last connection. Its rank is SET_RANK_UNASSURED until the client connects again in a later
 * second: so clients that come once, as in a flood, evict each other and not returning clients,
 * beginning with those of the Service that has most of them. Expired entries are removed only by
 * writers that need their place.
 *
 * If returning clients hold all places of both sets, one that has been idle for more than half of
 * its timeout is evicted. Otherwise clients that have left could keep out all others for hours.
 *
 * A socket hook can be preempted while it writes, by a program of the edge or by the hook of
 * another task. Its claimed place is then unusable for a while; a writer of the same key gives up
 * after a bounded wait and stores nothing. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/types.h"
#include "set_table/set_table.h"
#include "set_table/types.h"

/* Number of sets; set by the loader. */
const volatile __u32 affinity_sets = 1;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct affinity_set);
} affinity SEC(".maps");

/* The location of an entry: the number of its set, with the place in the low bits. All ones: there
 * is none. */
#define AFFINITY_PLACE_BITS 4
#define AFFINITY_NOT_FOUND  0xffffffff

static __always_inline __u32 place_in(__u32 at)
{
	__u32 place = at & ((1 << AFFINITY_PLACE_BITS) - 1);

	barrier_var(place); /* otherwise the compiler compares it with != 15, of which the verifier
			       of Linux 6.1 learns nothing */
	return place;
}

/* A new connection of a client, and the entry to store for it. */
struct affinity_query {
	struct affinity_entry entry;
	__u32 timeout; /* of the Service, in seconds */
	__u32 now;     /* in ticks; entry.last_used has it in seconds */
	__u64 sum;     /* set_sum of entry.key */
	__u64 seen;    /* version of the entry found; 0: none */
};

/* An entry as it was read. */
struct affinity_seen {
	__u32 at; /* AFFINITY_NOT_FOUND: no entry */
	__u32 backend;
	__u32 slot;
	__u32 last_used;
};

/* How often a writer polls for another writer of the same key to finish: some hundred microseconds.
 */
#define AFFINITY_SPINS (1 << 15)

static __always_inline __u64 affinity_sum(const struct affinity_key *key)
{
	return set_sum(key, sizeof(*key) / sizeof(__u32));
}

static __always_inline struct affinity_set *affinity_set_at(__u32 number)
{
	return bpf_map_lookup_elem(&affinity, &number);
}

static __always_inline int affinity_key_same(const struct affinity_key *a,
					     const struct affinity_key *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;

	return x[3] == y[3] && x[4] == y[4] && x[2] == y[2] && x[1] == y[1] && x[0] == y[0];
}

/* Identifies one version of an entry; never 0. */
static __always_inline __u64 affinity_version(__u32 backend, __u32 last_used)
{
	return (__u64)backend << 32 | last_used;
}

/* Returns the place of a key in a set, or SET_PLACES if it is not there. */
static __always_inline __u32 affinity_place(const struct affinity_set *set,
					    const struct affinity_key *key, __u32 tag)
{
	for (__u32 place = 0; place < SET_PLACES; place++)
		if (tag_at(&set->tags, place) == tag &&
		    affinity_key_same(&set->entries[place].key, key))
			return place;
	return SET_PLACES;
}

static __always_inline int affinity_spilled(const struct affinity_set *set)
{
	return *(const volatile __u32 *)&set->tags.spilled != 0;
}

/* Returns the location of the entry of a key. Global function: the verifier checks it once. */
__noinline __u32 affinity_find(const struct affinity_key *key, __u64 sum)
{
	__u32 number = set_first(sum, affinity_sets), tag = set_tag(sum), place;
	struct affinity_set *set = affinity_set_at(number);

	if (!key || !set)
		return AFFINITY_NOT_FOUND;
	place = affinity_place(set, key, tag);
	if (place < SET_PLACES)
		return number << AFFINITY_PLACE_BITS | place;
	if (!affinity_spilled(set))
		return AFFINITY_NOT_FOUND;
	number = set_second(sum, affinity_sets);
	set = affinity_set_at(number);
	if (!set)
		return AFFINITY_NOT_FOUND;
	place = affinity_place(set, key, tag);
	return place < SET_PLACES ? number << AFFINITY_PLACE_BITS | place : AFFINITY_NOT_FOUND;
}

/* Returns the place, other than `own`, where a key is stored or may be about to be; SET_PLACES if
 * there is none. Global function: the verifier checks it once. */
__noinline __u32 affinity_duplicate(const struct affinity_set *set, const struct affinity_key *key,
				    __u32 tag, __u32 own)
{
	__u32 others = ~(1u << (own & 31));

	if (!set || !key)
		return SET_PLACES;
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u32 there = tag_at(&set->tags, place);

		if (!(others >> place & 1) || (there & ~SET_CLAIMED) != tag)
			continue;
		if (there != tag || affinity_key_same(&set->entries[place].key, key))
			return place;
	}
	return SET_PLACES;
}

struct affinity_wait {
	const struct set_tags *tags;
	__u32 place;
	__u32 done;
};

static long affinity_await_step(__u32 attempt, struct affinity_wait *wait)
{
	if (wait->place >= SET_PLACES)
		return 1;
	wait->done = !(tag_at(wait->tags, wait->place) & SET_CLAIMED);
	return wait->done;
}

/* Waits until a place is no longer claimed. Returns whether it is free of claims: its writer may
 * have been preempted. Global function: the verifier checks it once. */
__noinline int affinity_await(const struct set_tags *tags, __u32 place)
{
	struct affinity_wait wait = {};

	if (!tags || place >= SET_PLACES)
		return 0;
	wait.tags = tags;
	wait.place = place;
	bpf_loop(AFFINITY_SPINS, affinity_await_step, &wait, 0);
	return wait.done;
}

/* Returns whether a client has been idle for more than half of its timeout: longer than the time
 * that is left until its entry expires. */
static __always_inline int affinity_idle(const struct affinity_set *set, __u32 place,
					 __u32 now_seconds, __u32 now)
{
	__s32 idle = now_seconds - set->entries[place].last_used;
	__s32 left = set->evictions.evictions[place].expires - now;

	return idle > 0 && SECONDS_TO_TICKS(idle) > (__u64)(left > 0 ? left : 0);
}

/* Picks a place for a new entry in one of its two sets; returns enum set_pick and sets *in_second.
 * A free place or a dead entry in either set is preferred to a live entry. */
static __always_inline __u32 affinity_pick_place(struct affinity_set *first,
						 struct affinity_set *second,
						 const struct affinity_query *q, int *in_second)
{
	__u32 owner = eviction_owner(q->entry.key.service, SET_RANK_UNASSURED), now = q->now;
	__u32 pick = set_pick(&first->tags, &first->evictions, owner, now), other, place;

	*in_second = 0;
	if (pick & (PICK_FREE | PICK_DEAD))
		return pick;
	other = set_pick(&second->tags, &second->evictions, owner, now);
	if (other & (PICK_FREE | PICK_DEAD) || (pick == PICK_NONE && other != PICK_NONE)) {
		*in_second = 1;
		return other;
	}
	if (pick != PICK_NONE)
		return pick;
	pick = set_pick(&first->tags, &first->evictions,
			eviction_owner(q->entry.key.service, SET_RANK_ASSURED), now);
	place = place_in(pick);
	if (place < SET_PLACES && !affinity_idle(first, place, q->entry.last_used, now))
		return PICK_NONE;
	return pick;
}

static __always_inline __u32 affinity_until(__u32 now, __u32 timeout)
{
	return now + SECONDS_TO_TICKS(timeout + 1); /* + 1, because last_used has whole seconds */
}

/* Fills a place that the caller has claimed, and publishes it to readers. */
static __always_inline void affinity_write(struct affinity_set *set, __u32 place,
					   const struct affinity_query *q, enum set_rank rank)
{
	set->entries[place] = q->entry;
	set->evictions.evictions[place].expires = affinity_until(q->now, q->timeout);
	set->evictions.evictions[place].owner = eviction_owner(q->entry.key.service, rank);
	write_tag(&set->tags.tags[place], set_tag(q->sum));
}

enum affinity_stored {
	AFFINITY_STORED,
	AFFINITY_AGAIN,	 /* lost a race: retry */
	AFFINITY_EXISTS, /* another writer has stored the key */
	AFFINITY_FAILED,
};

/* Whether a key is in a set, or about to be, in a place other than `own`. */
#define AFFINITY_HAS_DUPLICATE(set, q, own) \
	(affinity_duplicate(set, &(q)->entry.key, set_tag((q)->sum), own) < SET_PLACES)

/* Stores a new entry for a key that has none. */
static __always_inline int affinity_add(const struct affinity_query *q)
{
	struct affinity_set *first = affinity_set_at(set_first(q->sum, affinity_sets));
	struct affinity_set *second = affinity_set_at(set_second(q->sum, affinity_sets)), *set;
	__u32 place, pick, there;
	int in_second;

	if (!first || !second)
		return AFFINITY_FAILED;
	place = affinity_duplicate(first, &q->entry.key, set_tag(q->sum), SET_PLACES);
	if (place < SET_PLACES)
		return affinity_await(&first->tags, place) ? AFFINITY_AGAIN : AFFINITY_FAILED;
	if (affinity_spilled(first)) {
		place = affinity_duplicate(second, &q->entry.key, set_tag(q->sum), SET_PLACES);
		if (place < SET_PLACES)
			return affinity_await(&second->tags, place) ? AFFINITY_AGAIN
								    : AFFINITY_FAILED;
	}
	pick = affinity_pick_place(first, second, q, &in_second);
	place = place_in(pick);
	if (pick == PICK_NONE || place >= SET_PLACES)
		return AFFINITY_FAILED;
	set = in_second ? second : first;
	there = tag_at(&set->tags, place);
	if (set_pick_is_stale(pick, there, set_tag(q->sum)))
		return AFFINITY_AGAIN;
	/* Before the claim: a writer that misses this flag stores in the first set, where it is
	 * found below. */
	if (in_second && !affinity_spilled(first))
		*(volatile __u32 *)&first->tags.spilled = 1;
	if (!set_claim(&set->tags, place, there, q->sum))
		return AFFINITY_AGAIN;
	if (AFFINITY_HAS_DUPLICATE(first, q, set == first ? place : SET_PLACES) ||
	    (affinity_spilled(first) &&
	     AFFINITY_HAS_DUPLICATE(second, q, set == second ? place : SET_PLACES))) {
		/* The previous entry is gone. It must not be restored, because the agent may have
		 * looked it up meanwhile without finding it. */
		write_tag(&set->tags.tags[place], 0);
		return AFFINITY_AGAIN;
	}
	affinity_write(set, place, q, SET_RANK_UNASSURED);
	return AFFINITY_STORED;
}

/* Stores an entry, if the key still has the version in q->seen, or no entry if that is 0. Returns
 * enum affinity_stored. Global function: the verifier checks it once. */
__noinline int affinity_store(const struct affinity_query *q)
{
	if (!q)
		return AFFINITY_FAILED;
	for (int i = 0; i < SET_TRIES; i++) {
		__u32 at = affinity_find(&q->entry.key, q->sum);
		__u32 place = place_in(at);
		struct affinity_set *set = affinity_set_at(at >> AFFINITY_PLACE_BITS);

		if (!set || place >= SET_PLACES) {
			int stored = affinity_add(q);

			if (stored != AFFINITY_AGAIN)
				return stored;
			continue;
		}
		if (affinity_version(set->entries[place].backend, set->entries[place].last_used) !=
		    q->seen)
			return AFFINITY_EXISTS;
		if (set_claim(&set->tags, place, set_tag(q->sum), q->sum)) {
			/* Another writer may have updated it since the comparison. */
			if (affinity_version(set->entries[place].backend,
					     set->entries[place].last_used) != q->seen) {
				write_tag(&set->tags.tags[place], set_tag(q->sum));
				return AFFINITY_EXISTS;
			}
			affinity_write(set, place, q,
				       (__u32)q->seen == q->entry.last_used ? SET_RANK_UNASSURED
									    : SET_RANK_ASSURED);
			return AFFINITY_STORED;
		}
	}
	return AFFINITY_FAILED;
}

/* Reads the entry of a key. */
static __always_inline void affinity_read(const struct affinity_key *key, __u64 sum,
					  struct affinity_seen *seen)
{
	__u32 at = affinity_find(key, sum), place = place_in(at);
	const struct affinity_set *set = affinity_set_at(at >> AFFINITY_PLACE_BITS);

	seen->at = AFFINITY_NOT_FOUND;
	if (!set || place >= SET_PLACES)
		return;
	seen->backend = set->entries[place].backend;
	seen->slot = set->entries[place].slot;
	seen->last_used = set->entries[place].last_used;
	barrier();
	if (tag_at(&set->tags, place) == set_tag(sum))
		seen->at = at;
}

/* Restarts the timeout of a client that has connected again. If the place was reused meanwhile,
 * this restarts the timeout of another client, and sets a wrong slot, which is only a hint. */
static __always_inline void affinity_refresh(const struct affinity_query *q,
					     const struct affinity_seen *seen)
{
	__u32 place = place_in(seen->at);
	struct affinity_set *set = affinity_set_at(seen->at >> AFFINITY_PLACE_BITS);
	__u32 service = q->entry.key.service, once = eviction_owner(service, SET_RANK_UNASSURED);
	struct set_eviction *mark;

	if (!set || place >= SET_PLACES)
		return;
	if (set->entries[place].slot != seen->slot)
		set->entries[place].slot = seen->slot;
	if (seen->last_used == q->entry.last_used)
		return;
	mark = &set->evictions.evictions[place];
	set->entries[place].last_used = q->entry.last_used;
	mark->expires = affinity_until(q->now, q->timeout);
	if (mark->owner == once) /* not if another Service's entry has replaced it */
		__sync_val_compare_and_swap(&mark->owner, once,
					    eviction_owner(service, SET_RANK_ASSURED));
}
