/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The table of flows of which one side has been heard. The kernel's tables that make room by
 * themselves keep all records in lists, and move several cold ones for each that is stored: a
 * first packet cost more for these than for all else. Here a secret sum over a key says in which
 * set of 16 its record is, and of a set one cache line, by the key's hash, whether it is there at
 * all. Where a set is full the record goes that was seen longest ago.
 *
 * Nobody locks anything. Who stores a record claims its place by an atomic change of its tag, and
 * then looks whether another CPU stores the same key: one of two at least sees the other and
 * gives way. Readers find a record that is being replaced by its own tag, which is 0 meanwhile
 * (track_read). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_tables.h"
#include "edge_types.h"
#include "tuple.h"

/* How many sets there are, without the entry behind them; set by the loader. */
const volatile __u32 half_open_sets = 1;

/* 1 where a CPU may make its writes seen in another order than they stand; set by the loader. */
const volatile __u8 weakly_ordered = 1;

/* How often a place is looked for while others take those that have been found. */
#define HALF_OPEN_TRIES 4

/* A key's set: a sum of its words, each multiplied by a secret one of 64 bits, which stand behind
 * the last set. Whoever does not know them cannot find keys of one set, and put a record out with
 * these. (Carter and Wegman, "Universal Classes of Hash Functions", 1979.) The sums of a client's
 * ports one after the other are equal steps, which by one secret in fifty fall into few sets:
 * therefore a sum is mixed, which leaves different ones different. The agent does the same. */
static __always_inline __u32 half_open_number(const struct tuple *key)
{
	const __u32 *words = (const __u32 *)key;
	__u32 behind = half_open_sets;
	const struct half_open_secret *secret = bpf_map_lookup_elem(&half_open, &behind);
	__u64 sum = 0;

	if (!secret)
		return 0;
	for (int i = 0; i < (int)(sizeof(*key) / sizeof(*words)); i++)
		sum += secret->multipliers[i] * words[i];
	sum ^= sum >> 32;
	sum *= (__u64)HALF_OPEN_MIX_HIGH << 32 | HALF_OPEN_MIX_LOW;
	return ((sum >> 32) * half_open_sets) >> 32;
}

static __always_inline struct half_open_set *half_open_set(const struct tuple *key)
{
	__u32 number = half_open_number(key);

	return bpf_map_lookup_elem(&half_open, &number);
}

/* Of a hash; never 0. The agent does the same. */
static __always_inline __u32 half_open_tag(__u32 hash)
{
	hash &= ~HALF_OPEN_CLAIMED;
	return hash ? hash : 1;
}

static __always_inline __u32 tag_at(const struct half_open_set *set, __u32 place)
{
	return *(const volatile __u32 *)&set->tags[place];
}

#define HALF_OPEN_NOWHERE 0xffffffff

/* Where a record is: its set, and the place in that (place_of). HALF_OPEN_NOWHERE if it is not
 * there. Not static: the verifier looks at it once. */
__noinline __u32 half_open_at(const struct tuple *key, __u32 hash)
{
	__u32 number = key ? half_open_number(key) : 0, tag = half_open_tag(hash);
	struct half_open_set *set = bpf_map_lookup_elem(&half_open, &number);

	if (!set || !key)
		return HALF_OPEN_NOWHERE;
	for (__u32 place = 0; place < HALF_OPEN_PLACES; place++)
		if (tag_at(set, place) == tag && tuple_same(&set->records[place].key, key) &&
		    *(volatile __u32 *)&set->records[place].track.tag == hash)
			return number * HALF_OPEN_PLACES + place;
	return HALF_OPEN_NOWHERE;
}

static __always_inline __u32 place_of(__u32 at)
{
	return at % HALF_OPEN_PLACES;
}

static __always_inline struct track *half_open_find(const struct tuple *key, __u32 hash)
{
	__u32 at = half_open_at(key, hash), number = at / HALF_OPEN_PLACES;
	struct half_open_set *set = bpf_map_lookup_elem(&half_open, &number);

	return set && at != HALF_OPEN_NOWHERE ? &set->records[place_of(at)].track : 0;
}

/* A place that is free, or the one whose record was seen longest ago. Of several any. Not
 * static: the verifier looks at it once. */
__noinline __u32 half_open_room(const struct half_open_set *set, __u32 hash, __u32 now)
{
	__u32 oldest = 0;
	__s32 age = -1;

	if (!set)
		return 0;
	for (__u32 place = 0; place < HALF_OPEN_PLACES; place++)
		if (!tag_at(set, place))
			return place;
	for (__u32 n = 0; n < HALF_OPEN_PLACES; n++) {
		__u32 place = (n + (hash >> 4)) % HALF_OPEN_PLACES;
		__s32 seen = now - set->records[place].track.last_seen;

		if (seen > age && !(tag_at(set, place) & HALF_OPEN_CLAIMED)) {
			age = seen;
			oldest = place;
		}
	}
	return oldest;
}

/* Whether a key is in another place of its set, or may come to be. Not static, likewise. */
__noinline int half_open_twin(const struct half_open_set *set, const struct tuple *key, __u32 tag,
			      __u32 own)
{
	if (!set || !key)
		return 1;
	for (__u32 place = 0; place < HALF_OPEN_PLACES; place++) {
		__u32 there = tag_at(set, place);

		if (place == own || (there & ~HALF_OPEN_CLAIMED) != tag)
			continue;
		if (there != tag || tuple_same(&set->records[place].key, key))
			return 1;
	}
	return 0;
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

/* Stores a record in a place with some tag. Returns 0, or -1 if another CPU was there before, or
 * stores the same key. The atomic change is a barrier, too. */
static __always_inline int half_open_fill(struct half_open_set *set, __u32 place, __u32 there,
					  const struct tuple *key, const struct track *track)
{
	__u32 tag = half_open_tag(track->tag);
	struct half_open_record *record = &set->records[place];

	if (there & HALF_OPEN_CLAIMED ||
	    __sync_val_compare_and_swap(&set->tags[place], there, tag | HALF_OPEN_CLAIMED) != there)
		return -1;
	if (half_open_twin(set, key, tag, place)) {
		write_tag(&set->tags[place], 0);
		return -1;
	}
	write_tag(&record->track.tag, 0);
	record->key = *key;
	record->track.becomes = track->becomes;
	record->track.service = track->service;
	record->track.backend = track->backend;
	record->track.last_seen = track->last_seen;
	record->track.state = track->state;
	record->track.flags = track->flags;
	record->track.dsr = track->dsr;
	record->track.device = track->device;
	record->track.acked = track->acked;
	record->track.next = track->next;
	record->track.packets = track->packets;
	record->track.bytes = track->bytes;
	write_tag(&record->track.tag, track->tag);
	write_tag(&set->tags[place], tag);
	return 0;
}

enum half_open_stored {
	HALF_OPEN_STORED,
	HALF_OPEN_THERE, /* and is to stay */
	HALF_OPEN_FAILED,
};

/* Stores a record with its tag; `only_new`: unless its key has one. Not static: the verifier
 * looks at it once. Returns enum half_open_stored. */
__noinline int half_open_store(const struct tuple *key, const struct track *track, __u32 only_new)
{
	struct half_open_set *set;
	__u32 at, place;

	if (!key || !track)
		return HALF_OPEN_FAILED;
	set = half_open_set(key);
	if (!set)
		return HALF_OPEN_FAILED;
	for (int i = 0; i < HALF_OPEN_TRIES; i++) {
		__u32 there = half_open_tag(track->tag);

		at = half_open_at(key, track->tag);
		if (at != HALF_OPEN_NOWHERE && only_new)
			return HALF_OPEN_THERE;
		place = place_of(at);
		if (at == HALF_OPEN_NOWHERE) {
			place = place_of(half_open_room(set, track->tag, track->last_seen));
			there = tag_at(set, place);
		}
		if (!half_open_fill(set, place, there, key, track))
			return HALF_OPEN_STORED;
	}
	return HALF_OPEN_FAILED;
}

/* Removes a record, if it is there. Not static: the verifier looks at it once. */
__noinline int half_open_remove(const struct tuple *key, __u32 hash)
{
	__u32 at = half_open_at(key, hash), number = at / HALF_OPEN_PLACES;
	struct half_open_set *set = bpf_map_lookup_elem(&half_open, &number);

	if (set && at != HALF_OPEN_NOWHERE)
		__sync_val_compare_and_swap(&set->tags[place_of(at)], half_open_tag(hash), 0);
	return 0;
}
