/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Set-associative tables that the programs maintain themselves: conntrack/table.h,
 * lb/affinity.h. LRU maps of the kernel evict the least recently used entry, whoever needs the
 * room. Here a key belongs to a set of 15 places. The tags of the set locate the key, and the
 * eviction data decides which entry is evicted when the set is full:
 *
 *   1. one that has expired or is closed
 *   2. one that one side has closed
 *   3. of the Service with most entries in the set, the new one included: the entry of the
 *      highest rank
 *
 * Among equals: in 1 the one that expires first; in 2 one of the Service with most entries in the
 * set, and of these the one that expires first; likewise in 3.
 *
 * So a flood of one Service evicts that Service's own entries (longest queue drop), and entries
 * of a better rank are not evicted for new ones. This works without the agent.
 *
 * There are no locks. A writer claims a place by CAS on its tag, and then looks for the same key
 * in all places where it can be: of two writers of one key at least one sees the other and
 * gives up. A reader copies an entry and checks its tag afterwards. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "set_table/types.h"

/* 1 on CPUs that may reorder stores; set by the loader. */
const volatile __u8 weakly_ordered = 1;

/* How often a writer retries when others claim the place that it has picked. */
#define SET_TRIES 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set_secret);
} table_secret SEC(".maps");

/* Converts nanoseconds to ticks. A tick is 2^20 ns of CLOCK_MONOTONIC, about a millisecond. Ticks
 * wrap after 52 days; compared values are less than half of that apart. */
static __always_inline __u32 tick_of_ns(__u64 ns)
{
	return ns >> 20;
}

#define SECONDS_TO_TICKS(seconds) ((__u32)((__u64)(seconds) * 1000000000ull >> 20))
#define TICKS_TO_MS(ticks)	  ((__u32)(((__u64)(ticks) << 20) / 1000000))

/* Returns the sum of a key's words, each multiplied by a secret number. An attacker who does not
 * know the secrets cannot find keys of one set (Carter and Wegman, "Universal Classes of Hash
 * Functions", 1979). The sums of a client's consecutive ports are equidistant, which with one
 * secret in fifty maps them to few sets; so the sum is mixed. The agent computes the same
 * (settable.KeySum). */
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

/* Returns the first set of a key. */
static __always_inline __u32 set_first(__u64 sum, __u32 sets)
{
	return ((sum >> 32) * sets) >> 32;
}

/* Returns the second set of a key, to which entries of some tables spill. */
static __always_inline __u32 set_second(__u64 sum, __u32 sets)
{
	__u32 second = ((sum & 0xffffffff) * sets) >> 32;

	if (second == set_first(sum, sets))
		second = second + 1 < sets ? second + 1 : 0;
	return second;
}

/* Returns the tag of a hash; never 0. The agent computes the same. No branch: the verifier would
 * follow every search for a tag twice. */
static __always_inline __u32 set_tag(__u32 hash)
{
	hash &= ~SET_CLAIMED;
	return hash + ((hash - 1) >> 31);
}

static __always_inline __u32 tag_at(const struct set_tags *tags, __u32 place)
{
	return *(const volatile __u32 *)&tags->tags[place];
}

static __always_inline __u32 eviction_owner(__u32 service, enum set_rank rank)
{
	return service << SET_RANK_BITS | rank;
}

static __always_inline enum set_rank eviction_rank(const struct set_eviction *mark)
{
	return mark->owner & ((1 << SET_RANK_BITS) - 1);
}

static __always_inline int eviction_expired(const struct set_eviction *mark, __u32 now)
{
	return (__s32)(now - mark->expires) >= 0;
}

/* Result of set_pick: a place, and one flag for what is there. */
enum set_pick {
	PICK_PLACE = 15,
	PICK_FREE = 16,		/* nothing */
	PICK_DEAD = 32,		/* an entry that has expired or is closed */
	PICK_VICTIM = 64,	/* a live entry to evict */
	PICK_NONE = 128,	/* no place: all entries have a better rank than the new one */
	PICK_NO_MAJORITY = 256, /* of set_pick_of_majority only */
};

/* Returns 1 if two numbers are equal, else 0. The functions for full sets have no branches in
 * their loops: the verifier of Linux 6.1 follows each branch. The barriers keep the compiler from
 * making branches of it. */
static __always_inline __u64 same_number(__u64 a, __u64 b)
{
	__u64 difference = a ^ b, same = ~(difference | -difference) >> 63;

	barrier_var(same);
	return same;
}

/* Returns 1 if a is less than b, else 0. */
static __always_inline __u64 less_number(__u64 a, __u64 b)
{
	__u64 less = ((~a & b) | ((~a | b) & (a - b))) >> 63;

	barrier_var(less);
	return less;
}

/* Returns the priority of evicting the entry in a place; 0: it must stay. `weight` is its
 * Service's. */
static __always_inline __u64 set_score(const struct set_tags *tags,
				       const struct set_evictions *evictions, __u32 place,
				       __u32 owner, __u32 now, __u64 weight)
{
	const struct set_eviction *mark = &evictions->evictions[place];
	__u64 rank = eviction_rank(mark), newcomer = owner & ((1 << SET_RANK_BITS) - 1);
	__u32 since_expiry = now - mark->expires, live = since_expiry >> 31;
	/* The entry that expires first has the highest age; never 0. */
	__u64 age = (since_expiry ^ 0x80000000) + 1ull, dead, stays, closing;

	barrier_var(live);
	barrier_var(rank);
	closing = same_number(rank, SET_RANK_CLOSING);
	dead = (live ^ 1) | same_number(rank, SET_RANK_CLOSED);
	stays = tag_at(tags, place) >> 31 | (less_number(rank, newcomer) & ~dead);

	return (dead << 63 | (closing << 62 | weight << 48 | rank << 40) * (dead ^ 1) | age) *
	       ((stays & 1) ^ 1);
}

/* Returns whether the entry in a place may be evicted for one of an owner. Global function: the
 * verifier checks it once, and its callers have little stack left. */
__noinline int set_may_evict(const struct set_tags *tags, const struct set_evictions *evictions,
			     __u32 place, __u32 owner, __u32 now)
{
	if (!tags || !evictions || place >= SET_PLACES)
		return 0;
	return set_score(tags, evictions, place, owner, now, 0) != 0;
}

/* Returns whether another writer has stored an entry since a place was picked: in a free place, or
 * of the same key. `there` is the tag that the caller then replaces by CAS, `tag` that of the new
 * entry. */
static __always_inline int set_pick_is_stale(__u32 pick, __u32 there, __u32 tag)
{
	return there && (pick & PICK_FREE || there == tag);
}

/* Keeps the better of two places, with its score. */
static __always_inline void set_better(__u64 *best, __u32 *found, __u64 score, __u32 place)
{
	__u64 better = -less_number(*best, score);

	*best ^= (*best ^ score) & better;
	*found ^= (*found ^ place) & (__u32)better;
}

static __always_inline __u32 set_found(__u64 best, __u32 found)
{
	if (!best)
		return PICK_NONE;
	return (found & PICK_PLACE) | (best >> 63 ? PICK_DEAD : PICK_VICTIM);
}

/* Returns how many entries of a set a Service has. Global function: the verifier checks it once. */
__noinline __u32 set_entries_of(const struct set_evictions *evictions, __u32 service)
{
	__u32 count = 0;

	if (!evictions)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SET_PLACES; i++)
		count += same_number(evictions->evictions[i].owner >> SET_RANK_BITS, service);
	return count;
}

/* Returns the only Service that may have more than half of a set, a new entry of `service` included
 * (Boyer and Moore, "MJRTY", 1991). Global function: the verifier checks it once. */
__noinline __u32 set_candidate(const struct set_evictions *evictions, __u32 service)
{
	__u64 candidate = service, votes = 1;

	if (!evictions)
		return service;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SET_PLACES; i++) {
		__u64 other = evictions->evictions[i].owner >> SET_RANK_BITS;

		candidate ^= (candidate ^ other) & -same_number(votes, 0);
		votes += 2 * same_number(candidate, other) - 1;
	}
	return candidate;
}

/* Returns whether a Service has more than half of a set, a new entry of `service` included. */
static __always_inline int set_is_majority(const struct set_evictions *evictions, __u32 candidate,
					   __u32 service)
{
	return set_entries_of(evictions, candidate) + (candidate == service) > (SET_PLACES + 1) / 2;
}

/* Picks a place in a full set in which no Service has more than half: entries are weighted by the
 * number that their Service has. At a tie the Service of the new entry loses one. Returns enum
 * set_pick. Global function: the verifier checks it once. */
__noinline __u32 set_pick_by_weight(const struct set_tags *tags,
				    const struct set_evictions *evictions, __u32 owner, __u32 now)
{
	__u64 service = owner >> SET_RANK_BITS, best = 0;
	__u32 found = 0;

	if (!tags || !evictions)
		return PICK_NONE;
#pragma clang loop unroll(disable)
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u64 other = evictions->evictions[place].owner >> SET_RANK_BITS;
		__u64 weight =
			2 * set_entries_of(evictions, other) + 3 * same_number(other, service);

		set_better(&best, &found, set_score(tags, evictions, place, owner, now, weight),
			   place);
	}
	return set_found(best, found);
}

/* Picks a place for a new entry, free or of the Service that has more than half of the set;
 * PICK_NO_MAJORITY if none has. Returns enum set_pick. Global function: the verifier checks it
 * once. */
__noinline __u32 set_pick_of_majority(const struct set_tags *tags,
				      const struct set_evictions *evictions, __u32 owner, __u32 now)
{
	__u32 found = 0, service = owner >> SET_RANK_BITS, largest;
	__u64 best = 0;

	if (!tags || !evictions)
		return PICK_NONE;
	for (__u32 place = 0; place < SET_PLACES; place++)
		if (!tag_at(tags, place))
			return place | PICK_FREE;
	largest = set_candidate(evictions, service);
	if (!set_is_majority(evictions, largest, service))
		return PICK_NO_MAJORITY;
#pragma clang loop unroll(disable)
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u64 weight =
			same_number(evictions->evictions[place].owner >> SET_RANK_BITS, largest);

		set_better(&best, &found, set_score(tags, evictions, place, owner, now, weight),
			   place);
	}
	return set_found(best, found);
}

/* Picks a place for a new entry of an owner (eviction_owner). Returns enum set_pick. The functions
 * are called in sequence, not nested: the stack is nearly full. */
static __always_inline __u32 set_pick(const struct set_tags *tags,
				      const struct set_evictions *evictions, __u32 owner, __u32 now)
{
	__u32 pick = set_pick_of_majority(tags, evictions, owner, now);

	return pick == PICK_NO_MAJORITY ? set_pick_by_weight(tags, evictions, owner, now) : pick;
}

/* Writes a tag after all preceding stores and before all following ones. An atomic operation is a
 * full barrier, but waits for cache misses; on x86 a compiler barrier suffices. */
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

/* Orders all preceding reads before all following ones. */
static __always_inline void set_read_barrier(void)
{
	__u32 word = 0;

	if (weakly_ordered)
		__sync_fetch_and_add(&word, 1);
	barrier();
}

/* Claims a place whose tag was `there` for an entry with a hash. Returns whether it succeeded. The
 * atomic operation is also a barrier. */
static __always_inline int set_claim(struct set_tags *tags, __u32 place, __u32 there, __u32 hash)
{
	return !(there & SET_CLAIMED) &&
	       __sync_val_compare_and_swap(&tags->tags[place], there,
					   set_tag(hash) | SET_CLAIMED) == there;
}
