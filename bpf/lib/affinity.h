/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The backends that the clients of Services with session affinity had last (R27).
 *
 * A client has a place in one of two sets (set_table.h): in the second one if the first was full of
 * live entries when it came. An entry is live for the Service's timeout after the last connection.
 * It is SET_RANK_UNASSURED until the client connects again in a later second: clients that come
 * once, as those of a flood do, give way to each other and not to it, and first those of the
 * Service that has most of them. Nothing removes what has expired but the next that needs its
 * place.
 *
 * Where all places of both sets are held by clients that have come again, one of them that has
 * been away for more than half of its timeout gives way: otherwise clients that are gone could
 * keep all others out for hours.
 *
 * Hooks of sockets can be preempted while they write, by the edge's programs or another task's
 * hook. Their claimed place is then of no use, and who stores the same key gives up after a moment
 * and remembers nothing. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "set_table.h"
#include "types.h"

/* How many sets there are; set by the loader. */
const volatile __u32 affinity_sets = 1;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct affinity_set);
} affinity SEC(".maps");

/* Where an entry is: the set's number, and the place in the lower bits; there all ones: nowhere. */
#define AFFINITY_PLACE_BITS 4
#define AFFINITY_NOWHERE    0xffffffff

static __always_inline __u32 place_in(__u32 at)
{
	__u32 place = at & ((1 << AFFINITY_PLACE_BITS) - 1);

	barrier_var(place); /* or it is compared as different from 15, which Linux 6.1 learns
			       nothing from */
	return place;
}

/* A new connection of a client, and what becomes of it: the entry to store. */
struct affinity_query {
	struct affinity_entry entry;
	__u32 timeout; /* the Service's, in seconds */
	__u32 now;     /* a tick; in seconds it is entry.last_used */
	__u64 sum;     /* of entry.key */
	__u64 seen;    /* version of the entry that has been found; 0: none */
};

/* What is known of a client. */
struct affinity_seen {
	__u32 at; /* AFFINITY_NOWHERE: nothing */
	__u32 backend;
	__u32 slot;
	__u32 last_used;
};

/* How often a writer looks whether another one of the same key is done: some hundred microseconds.
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

/* Tells the entry of a key from an earlier or later one; never 0. */
static __always_inline __u64 affinity_version(__u32 backend, __u32 last_used)
{
	return (__u64)backend << 32 | last_used;
}

/* The place of a key in a set, SET_PLACES if it is not there. */
static __always_inline __u32 affinity_place(const struct affinity_set *set,
					    const struct affinity_key *key, __u32 tag)
{
	for (__u32 place = 0; place < SET_PLACES; place++)
		if (tag_at(&set->head, place) == tag &&
		    affinity_key_same(&set->entries[place].key, key))
			return place;
	return SET_PLACES;
}

static __always_inline int affinity_spilled(const struct affinity_set *set)
{
	return *(const volatile __u32 *)&set->head.spilled != 0;
}

/* Where the entry of a key is. Not static: the verifier looks at it once. */
__noinline __u32 affinity_find(const struct affinity_key *key, __u64 sum)
{
	__u32 number = set_first(sum, affinity_sets), tag = set_tag(sum), place;
	struct affinity_set *set = affinity_set_at(number);

	if (!key || !set)
		return AFFINITY_NOWHERE;
	place = affinity_place(set, key, tag);
	if (place < SET_PLACES)
		return number << AFFINITY_PLACE_BITS | place;
	if (!affinity_spilled(set))
		return AFFINITY_NOWHERE;
	number = set_second(sum, affinity_sets);
	set = affinity_set_at(number);
	if (!set)
		return AFFINITY_NOWHERE;
	place = affinity_place(set, key, tag);
	return place < SET_PLACES ? number << AFFINITY_PLACE_BITS | place : AFFINITY_NOWHERE;
}

/* The place, other than a writer's own, where a key is or may be about to come; SET_PLACES: none.
 * Not static, likewise. */
__noinline __u32 affinity_twin(const struct affinity_set *set, const struct affinity_key *key,
			       __u32 tag, __u32 own)
{
	if (!set || !key)
		return SET_PLACES;
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u32 there = tag_at(&set->head, place);

		if (place == own || (there & ~SET_CLAIMED) != tag)
			continue;
		if (there != tag || affinity_key_same(&set->entries[place].key, key))
			return place;
	}
	return SET_PLACES;
}

struct affinity_wait {
	const struct set_head *head;
	__u32 place;
	__u32 done;
};

static long affinity_await_step(__u32 attempt, struct affinity_wait *wait)
{
	if (wait->place >= SET_PLACES)
		return 1;
	wait->done = !(tag_at(wait->head, wait->place) & SET_CLAIMED);
	return wait->done;
}

/* Waits until a place is no longer claimed. Returns whether that is so: its writer may have been
 * preempted. Not static, likewise. */
__noinline int affinity_await(const struct set_head *head, __u32 place)
{
	struct affinity_wait wait = {};

	if (!head || place >= SET_PLACES)
		return 0;
	wait.head = head;
	wait.place = place;
	bpf_loop(AFFINITY_SPINS, affinity_await_step, &wait, 0);
	return wait.done;
}

/* Whether a client has been away for longer than it may still be before its entry expires. */
static __always_inline int affinity_idle(const struct affinity_set *set, __u32 place,
					 __u32 now_seconds, __u32 now)
{
	__s32 idle = now_seconds - set->entries[place].last_used;
	__s32 left = set->head.marks[place].until - now;

	return idle > 0 && SECONDS_TO_TICKS(idle) > (__u64)(left > 0 ? left : 0);
}

/* Room for a new entry in one of its two sets, enum set_room; *number says in which. What is free
 * or dead in either of them comes before what is live. */
static __always_inline __u32 affinity_room(struct affinity_set *first, struct affinity_set *second,
					   const struct affinity_query *q, int *in_second)
{
	__u32 owner = mark_owner(q->entry.key.service, SET_RANK_UNASSURED), now = q->now;
	__u32 room = set_room(&first->head, owner, now), other, place;

	*in_second = 0;
	if (room & (ROOM_FREE | ROOM_DEAD))
		return room;
	other = set_room(&second->head, owner, now);
	if (other & (ROOM_FREE | ROOM_DEAD) || (room == ROOM_NONE && other != ROOM_NONE)) {
		*in_second = 1;
		return other;
	}
	if (room != ROOM_NONE)
		return room;
	room = set_room(&first->head, mark_owner(q->entry.key.service, SET_RANK_ASSURED), now);
	place = place_in(room);
	if (place < SET_PLACES && !affinity_idle(first, place, q->entry.last_used, now))
		return ROOM_NONE;
	return room;
}

static __always_inline __u32 affinity_until(__u32 now, __u32 timeout)
{
	return now + SECONDS_TO_TICKS(timeout + 1); /* a client has whole seconds */
}

/* Fills a place that the caller has claimed, and gives it free for readers. */
static __always_inline void affinity_write(struct affinity_set *set, __u32 place,
					   const struct affinity_query *q, enum set_rank rank)
{
	set->entries[place] = q->entry;
	set->head.marks[place].until = affinity_until(q->now, q->timeout);
	set->head.marks[place].owner = mark_owner(q->entry.key.service, rank);
	write_tag(&set->head.tags[place], set_tag(q->sum));
}

enum affinity_stored {
	AFFINITY_STORED,
	AFFINITY_AGAIN, /* others were in the way */
	AFFINITY_THERE, /* another one has stored the key */
	AFFINITY_FAILED,
};

/* Whether the key is about to come into a set, or is in it by now; in a place other than `own`. */
#define AFFINITY_TWIN(set, q, own) \
	(affinity_twin(set, &(q)->entry.key, set_tag((q)->sum), own) < SET_PLACES)

/* Stores the entry of a key that is in no place. */
static __always_inline int affinity_add(const struct affinity_query *q)
{
	struct affinity_set *first = affinity_set_at(set_first(q->sum, affinity_sets));
	struct affinity_set *second = affinity_set_at(set_second(q->sum, affinity_sets)), *set;
	__u32 place, room, there;
	int in_second;

	if (!first || !second)
		return AFFINITY_FAILED;
	place = affinity_twin(first, &q->entry.key, set_tag(q->sum), SET_PLACES);
	if (place < SET_PLACES)
		return affinity_await(&first->head, place) ? AFFINITY_AGAIN : AFFINITY_FAILED;
	if (affinity_spilled(first)) {
		place = affinity_twin(second, &q->entry.key, set_tag(q->sum), SET_PLACES);
		if (place < SET_PLACES)
			return affinity_await(&second->head, place) ? AFFINITY_AGAIN
								    : AFFINITY_FAILED;
	}
	room = affinity_room(first, second, q, &in_second);
	place = place_in(room);
	if (room == ROOM_NONE || place >= SET_PLACES)
		return AFFINITY_FAILED;
	set = in_second ? second : first;
	there = tag_at(&set->head, place);
	if (room & ROOM_FREE && there)
		return AFFINITY_AGAIN;
	/* Before the place is claimed: who does not see this stores in the first set, where it is
	 * seen below. */
	if (in_second && !affinity_spilled(first))
		*(volatile __u32 *)&first->head.spilled = 1;
	if (!set_claim(&set->head, place, there, q->sum))
		return AFFINITY_AGAIN;
	if (AFFINITY_TWIN(first, q, set == first ? place : SET_PLACES) ||
	    (affinity_spilled(first) &&
	     AFFINITY_TWIN(second, q, set == second ? place : SET_PLACES))) {
		/* What was here is gone: the agent may have looked for it meanwhile in vain. */
		write_tag(&set->head.tags[place], 0);
		return AFFINITY_AGAIN;
	}
	affinity_write(set, place, q, SET_RANK_UNASSURED);
	return AFFINITY_STORED;
}

/* Stores an entry in place of the one that has been seen, which is void, or where there is none.
 * Another one stays. Returns enum affinity_stored. Not static: the verifier looks at it once. */
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
			return AFFINITY_THERE;
		if (set_claim(&set->head, place, set_tag(q->sum), q->sum)) {
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

	seen->at = AFFINITY_NOWHERE;
	if (!set || place >= SET_PLACES)
		return;
	seen->backend = set->entries[place].backend;
	seen->slot = set->entries[place].slot;
	seen->last_used = set->entries[place].last_used;
	barrier();
	if (tag_at(&set->head, place) == set_tag(sum))
		seen->at = at;
}

/* Begins a client's timeout anew, for it has come back. Should its place have become another one's
 * meanwhile, then that one's timeout begins anew, and the slot is only a hint. */
static __always_inline void affinity_refresh(const struct affinity_query *q,
					     const struct affinity_seen *seen)
{
	__u32 place = place_in(seen->at);
	struct affinity_set *set = affinity_set_at(seen->at >> AFFINITY_PLACE_BITS);
	__u32 service = q->entry.key.service, once = mark_owner(service, SET_RANK_UNASSURED);
	struct set_mark *mark;

	if (!set || place >= SET_PLACES)
		return;
	if (set->entries[place].slot != seen->slot)
		set->entries[place].slot = seen->slot;
	if (seen->last_used == q->entry.last_used)
		return;
	mark = &set->head.marks[place];
	set->entries[place].last_used = q->entry.last_used;
	mark->until = affinity_until(q->now, q->timeout);
	if (mark->owner == once) /* still: what belongs to another Service stays so */
		__sync_val_compare_and_swap(&mark->owner, once,
					    mark_owner(service, SET_RANK_ASSURED));
}
