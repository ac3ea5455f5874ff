/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Set-associative tables that the programs themselves keep in order: conntrack_table.h, affinity.h.
 * The kernel's LRU maps evict what any program has not used for longest, whoever needs the room.
 * Here a key belongs to one set of 15 places. The set's tags say where the key is, and its marks
 * which entry gives way when the set is full:
 *
 *   1. one that has expired or is closed
 *   2. of the Service that has most entries in the set, the new one counted, the entry of the
 *      highest rank, and of these the one that expires first
 *
 * So the flood of one Service displaces its own entries and no other Service's (longest queue
 * drop), and what has proved itself does not give way to what has not. No agent is needed for this.
 *
 * There are no locks. A writer claims a place by CAS on its tag, and then looks for the same key
 * in all places where that can be: of two writers of one key at least one sees the other and
 * gives up. A reader copies an entry and checks its tag afterwards. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "set_table_types.h"

/* 1 where a CPU may make its writes seen in another order than they stand; set by the loader. */
const volatile __u8 weakly_ordered = 1;

/* How often a writer looks for a place while others take those that it has found. */
#define SET_TRIES 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set_secret);
} table_secret SEC(".maps");

/* A tick is 2^20 ns of CLOCK_MONOTONIC, about a millisecond. Ticks wrap after 52 days; what is
 * compared is never half of that apart. */
static __always_inline __u32 tick_of_ns(__u64 ns)
{
	return ns >> 20;
}

#define SECONDS_TO_TICKS(seconds) ((__u32)((__u64)(seconds) * 1000000000ull >> 20))

/* A sum of a key's words, each multiplied by a secret one. An attacker who does not know the secret
 * cannot find keys that fall into one set. (Carter and Wegman, "Universal Classes of Hash
 * Functions", 1979.) The sums of a client's ports one after the other are equal steps, which by one
 * secret in fifty fall into few sets; therefore the sum is mixed. The agent computes the same
 * (datapath.setSum). */
static __always_inline __u64 set_sum(const void *key, int words)
{
	const __u32 *word = key;
	__u32 zero = 0;
	const struct set_secret *secret = bpf_map_lookup_elem(&table_secret, &zero);
	__u64 sum = 0;

	if (!secret)
		return 0;
	for (int i = 0; i < words; i++)
		sum += secret->multipliers[i] * word[i];
	sum ^= sum >> 32;
	return sum * ((__u64)SET_MIX_HIGH << 32 | SET_MIX_LOW);
}

/* The set of a key. */
static __always_inline __u32 set_first(__u64 sum, __u32 sets)
{
	return ((sum >> 32) * sets) >> 32;
}

/* The other set that a key may be in, where a table spills. */
static __always_inline __u32 set_second(__u64 sum, __u32 sets)
{
	__u32 second = ((sum & 0xffffffff) * sets) >> 32;

	if (second == set_first(sum, sets))
		second = second + 1 < sets ? second + 1 : 0;
	return second;
}

/* Of a hash; never 0. The agent computes the same. */
static __always_inline __u32 set_tag(__u32 hash)
{
	hash &= ~SET_CLAIMED;
	return hash ? hash : 1;
}

static __always_inline __u32 tag_at(const struct set_head *head, __u32 place)
{
	return *(const volatile __u32 *)&head->tags[place];
}

static __always_inline __u32 mark_owner(__u32 service, enum set_rank rank)
{
	return service << SET_RANK_BITS | rank;
}

static __always_inline enum set_rank mark_rank(const struct set_mark *mark)
{
	return mark->owner & ((1 << SET_RANK_BITS) - 1);
}

static __always_inline int mark_expired(const struct set_mark *mark, __u32 now)
{
	return (__s32)(now - mark->until) >= 0;
}

/* What set_room returns: a place, and what is there. */
enum set_room {
	ROOM_PLACE = 15,
	ROOM_FREE = 16,	   /* nothing */
	ROOM_DEAD = 32,	   /* an entry that has expired or is closed */
	ROOM_VICTIM = 64,  /* one that gives way */
	ROOM_NONE = 128,   /* no place: all entries have a lower rank than the new one */
	ROOM_SHARED = 256, /* of set_room_alone */
};

/* 1 if two numbers are the same, and 0 otherwise. The functions on full sets have no branches and
 * no calls in their loops: Linux 6.1 follows each of the former, and remembers everything because
 * of the latter. */
static __always_inline __u64 same_number(__u64 a, __u64 b)
{
	__u64 difference = a ^ b;

	return ~(difference | -difference) >> 63;
}

/* 1 if one number is less than another, and 0 otherwise. */
static __always_inline __u64 less_number(__u64 a, __u64 b)
{
	return ((~a & b) | ((~a | b) & (a - b))) >> 63;
}

/* How much the entry in a place deserves to give way for a new one; 0: it does not. `weight` is
 * that of its Service. */
static __always_inline __u64 set_score(const struct set_head *head, __u32 place, __u32 owner,
				       __u32 now, __u64 weight)
{
	const struct set_mark *mark = &head->marks[place];
	__u64 rank = mark_rank(mark), newcomer = owner & ((1 << SET_RANK_BITS) - 1);
	/* What expires first has the highest age, which is never 0. */
	__u64 age = ((__u32)(now - mark->until) ^ 0x80000000) + 1ull;
	__u64 expired = (~(__u32)(now - mark->until)) >> 31;
	__u64 dead = expired | same_number(rank, SET_RANK_CLOSED);
	__u64 stays = tag_at(head, place) >> 31 | (less_number(rank, newcomer) & ~dead);

	return (dead << 63 | (weight << 48 | rank << 40) * (dead ^ 1) | age) * ((stays & 1) ^ 1);
}

/* The better one of two places, with its score. */
static __always_inline void set_better(__u64 *best, __u32 *found, __u64 score, __u32 place)
{
	__u64 better = -less_number(*best, score);

	barrier_var(better); /* or the compiler makes branches of it */
	*best ^= (*best ^ score) & better;
	*found ^= (*found ^ place) & (__u32)better;
}

static __always_inline __u32 set_found(__u64 best, __u32 found)
{
	if (!best)
		return ROOM_NONE;
	return (found & ROOM_PLACE) | (best >> 63 ? ROOM_DEAD : ROOM_VICTIM);
}

/* The Service that has more than half of a set, with a new entry of another or of its own (Boyer
 * and Moore, "MJRTY", 1991); 0xffffffff: none has. Not static: the verifier looks at it once. */
__noinline __u32 set_majority(const struct set_head *head, __u32 service)
{
	__u64 candidate = service, votes = 1, count;

	if (!head)
		return 0xffffffff;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SET_PLACES; i++) {
		__u64 other = head->marks[i].owner >> SET_RANK_BITS;

		candidate ^= (candidate ^ other) & -same_number(votes, 0);
		votes += 2 * same_number(candidate, other) - 1;
	}
	count = same_number(candidate, service);
#pragma clang loop unroll(disable)
	for (int i = 0; i < SET_PLACES; i++)
		count += same_number(head->marks[i].owner >> SET_RANK_BITS, candidate);
	return count > (SET_PLACES + 1) / 2 ? candidate : 0xffffffff;
}

/* A place in a full set of which no Service has more than half: each is weighed by what it has. Of
 * equals the one that asks for more pays. Not static: the verifier looks at it once. Returns enum
 * set_room. */
__noinline __u32 set_room_shared(const struct set_head *head, __u32 owner, __u32 now)
{
	__u64 service = owner >> SET_RANK_BITS, best = 0;
	__u32 found = 0;

	if (!head)
		return ROOM_NONE;
#pragma clang loop unroll(disable)
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u64 other = head->marks[place].owner >> SET_RANK_BITS;
		__u64 weight = 3 * same_number(other, service);

#pragma clang loop unroll(disable)
		for (int i = 0; i < SET_PLACES; i++)
			weight += 2 * same_number(head->marks[i].owner >> SET_RANK_BITS, other);
		set_better(&best, &found, set_score(head, place, owner, now, weight), place);
	}
	return set_found(best, found);
}

/* A place for a new entry of an owner, unless no Service has more than half of the set: then
 * ROOM_SHARED. Not static: the verifier looks at it once. Returns enum set_room. */
__noinline __u32 set_room_alone(const struct set_head *head, __u32 owner, __u32 now)
{
	__u32 found = 0, largest;
	__u64 best = 0;

	if (!head)
		return ROOM_NONE;
	for (__u32 place = 0; place < SET_PLACES; place++)
		if (!tag_at(head, place))
			return place | ROOM_FREE;
	largest = set_majority(head, owner >> SET_RANK_BITS);
	if (largest == 0xffffffff)
		return ROOM_SHARED;
#pragma clang loop unroll(disable)
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u64 weight = same_number(head->marks[place].owner >> SET_RANK_BITS, largest);

		set_better(&best, &found, set_score(head, place, owner, now, weight), place);
	}
	return set_found(best, found);
}

/* A place for a new entry of an owner (mark_owner). One function after the other, and not within
 * the other: the stack has room for few. Returns enum set_room. */
static __always_inline __u32 set_room(const struct set_head *head, __u32 owner, __u32 now)
{
	__u32 room = set_room_alone(head, owner, now);

	return room == ROOM_SHARED ? set_room_shared(head, owner, now) : room;
}

/* Writes a tag after all that stands before it, and before all that follows. An atomic change is a
 * barrier on every CPU, and waits for what is in no cache; of x86 the compiler alone needs be told.
 */
static __always_inline void write_tag(__u32 *tag, __u32 value)
{
	if (weakly_ordered) {
		__sync_lock_test_and_set(tag, value);
		return;
	}
	barrier();
	*(volatile __u32 *)tag = value;
	barrier();
}

/* Claims a place whose tag was `there` for an entry with a hash. Returns whether it has. The
 * atomic change is a barrier, too. */
static __always_inline int set_claim(struct set_head *head, __u32 place, __u32 there, __u32 hash)
{
	return !(there & SET_CLAIMED) &&
	       __sync_val_compare_and_swap(&head->tags[place], there,
					   set_tag(hash) | SET_CLAIMED) == there;
}
