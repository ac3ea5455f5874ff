/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables of conntrack entries (set_table.h):
 *
 *   tracks     flows that are assured: TCP whose handshake is complete, and what has gone on in
 *              both directions. An entry that finds its set full spills to a second one.
 *   half_open  all others: handshakes, one-shot UDP. A flood fills this one.
 *
 * A flow has an entry for each direction and gives way as a whole: a writer that displaces one
 * entry removes the other. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "edge_tables.h"
#include "edge_types.h"
#include "set_table.h"
#include "tuple.h"
#include "workspace.h"

/* How many sets there are; set by the loader. */
const volatile __u32 tracks_sets = 1;
const volatile __u32 half_open_sets = 1;

/* By enum conntrack_timeout, in ticks; set by the loader. */
const volatile __u32 conntrack_timeouts[TIMEOUTS] = {
	[TIMEOUT_HALF_OPEN_TCP] = SECONDS_TO_TICKS(60),
	[TIMEOUT_HALF_OPEN_UDP] = SECONDS_TO_TICKS(30),
	[TIMEOUT_TCP] = SECONDS_TO_TICKS(8 * 3600),
	[TIMEOUT_UDP] = SECONDS_TO_TICKS(120),
	[TIMEOUT_CLOSING] = SECONDS_TO_TICKS(60),
	[TIMEOUT_CLOSED] = SECONDS_TO_TICKS(10),
};

enum conntrack_table {
	IN_TRACKS = 1,
	IN_HALF_OPEN = 2,
	IN_ANY = 3,
};

/* Where an entry is, in one word: the table, the number of the set, the place in that. */
#define CT_NOWHERE   0xffffffff
#define CT_HALF_OPEN 0x80000000

static __always_inline __u32 ct_place(__u32 at)
{
	__u32 place = at & 15;

	barrier_var(place); /* or it is compared as different from 15, which Linux 6.1 learns
			       nothing from */
	return place;
}

static __always_inline struct conntrack_set *ct_set_of(__u32 half_open_bit, __u32 number)
{
	return half_open_bit ? bpf_map_lookup_elem(&half_open, &number)
			     : bpf_map_lookup_elem(&tracks, &number);
}

static __always_inline struct conntrack_set *ct_set(__u32 at)
{
	return ct_set_of(at & CT_HALF_OPEN, (at & ~CT_HALF_OPEN) >> 4);
}

static __always_inline __u32 ct_search(__u32 half_open_bit, __u32 number, const struct tuple *key,
				       __u32 hash)
{
	const struct conntrack_set *set = ct_set_of(half_open_bit, number);
	__u32 tag = set_tag(hash);

	if (!set)
		return CT_NOWHERE;
	for (__u32 place = 0; place < SET_PLACES; place++)
		if (tag_at(&set->head, place) == tag && tuple_same(&set->entries[place].key, key) &&
		    *(volatile __u32 *)&set->entries[place].track.tag == hash)
			return half_open_bit | number << 4 | place;
	return CT_NOWHERE;
}

static __always_inline __u64 ct_sum(const struct tuple *key)
{
	return set_sum(key, sizeof(*key) / sizeof(__u32));
}

/* Where the entry of a key with a hash is; CT_NOWHERE if there is none. Not static: the verifier
 * looks at it once. */
__noinline __u32 ct_at(const struct tuple *key, __u32 hash, enum conntrack_table tables)
{
	const struct conntrack_set *set;
	__u32 number, at = CT_NOWHERE;
	__u64 sum;

	if (!key)
		return CT_NOWHERE;
	sum = ct_sum(key);
	if (tables & IN_TRACKS) {
		number = set_first(sum, tracks_sets);
		at = ct_search(0, number, key, hash);
		if (at != CT_NOWHERE)
			return at;
		set = ct_set_of(0, number);
		if (set && *(const volatile __u32 *)&set->head.spilled)
			at = ct_search(0, set_second(sum, tracks_sets), key, hash);
	}
	if (at == CT_NOWHERE && tables & IN_HALF_OPEN)
		at = ct_search(CT_HALF_OPEN, set_first(sum, half_open_sets), key, hash);
	return at;
}

/* An entry by where it is; 0 if it is nowhere: no table has such a set. */
static __always_inline struct track *ct_track(__u32 at)
{
	struct conntrack_set *set = ct_set(at);
	__u32 place = ct_place(at);

	return set && place < SET_PLACES ? &set->entries[place].track : 0;
}

/* The mark of an entry; 0 if it is nowhere. */
static __always_inline struct set_mark *ct_mark(__u32 at)
{
	struct conntrack_set *set = ct_set(at);
	__u32 place = ct_place(at);

	return set && place < SET_PLACES ? &set->head.marks[place] : 0;
}

/* For how long a flow in a state is remembered, in ticks. */
static __always_inline __u32 ct_timeout(__u8 protocol, enum track_state state)
{
	int udp = protocol == IPPROTO_UDP;

	switch (state) {
	case TRACK_NEW:
	case TRACK_ANSWERED:
		return conntrack_timeouts[udp ? TIMEOUT_HALF_OPEN_UDP : TIMEOUT_HALF_OPEN_TCP];
	case TRACK_ESTABLISHED:
		return conntrack_timeouts[udp ? TIMEOUT_UDP : TIMEOUT_TCP];
	case TRACK_CLOSING:
		return conntrack_timeouts[TIMEOUT_CLOSING];
	default:
		return conntrack_timeouts[TIMEOUT_CLOSED];
	}
}

/* A half-closed connection may go on for long in the other direction: it ranks as one that is
 * open, and has a shorter timeout. */
static __always_inline enum set_rank ct_rank(__u8 protocol, enum track_state state, int half_open)
{
	if (state == TRACK_CLOSED)
		return SET_RANK_CLOSED;
	if (half_open)
		return SET_RANK_UNASSURED;
	return protocol == IPPROTO_UDP ? SET_RANK_ASSURED : SET_RANK_TCP;
}

/* The mark of an entry of `tracks` is made anew once in so many seconds: until then it is that
 * much late. */
#define MARK_SECONDS 8

/* The mark of a flow that has been seen now. */
static __always_inline struct set_mark ct_mark_of(struct workspace *w, __u8 protocol,
						  const struct track *track, int half_open)
{
	__u32 slack = half_open ? 0 : SECONDS_TO_TICKS(MARK_SECONDS);
	struct set_mark mark = {
		.until = tick_of(w) + ct_timeout(protocol, track->state) + slack,
		.owner = mark_owner(track->service, ct_rank(protocol, track->state, half_open)),
	};

	return mark;
}

/* Removes an entry that is, or was, somewhere. */
static __always_inline void ct_clear(__u32 at, __u32 hash)
{
	struct conntrack_set *set = ct_set(at);
	__u32 place = ct_place(at);

	if (set && place < SET_PLACES)
		__sync_val_compare_and_swap(&set->head.tags[place], set_tag(hash), 0);
}

/* Removes the entry of a key, if it is there. Not static: the verifier looks at it once. */
__noinline int ct_remove(const struct tuple *key, __u32 hash, enum conntrack_table tables)
{
	__u32 at = ct_at(key, hash, tables);

	ct_clear(at, hash);
	return 0;
}

/* Adds the packets of an entry that goes to those of its Service. */
static __always_inline void ct_add_up(const struct track *track)
{
	struct service_counters *counters = counters_of(track->service);

	if (!counters)
		return;
	if (track->flags & TRACK_REPLY) {
		counters->received_packets += track->packets;
		counters->received_bytes += track->bytes;
	} else {
		counters->sent_packets += track->packets;
		counters->sent_bytes += track->bytes;
	}
}

/* Removes the other entry of a flow of which one has given way; w->victim is its key, and what its
 * packets become the key of that, turned round. Not static: the verifier looks at it once. */
__noinline int ct_evict_other(void)
{
	struct workspace *w = workspace_get();
	struct track *track;
	__u32 hash, at;

	if (!w)
		return 0;
	hash = tuple_hash(&w->victim.other);
	at = ct_at(&w->victim.other, hash, IN_ANY);
	track = ct_track(at);
	if (!track)
		return 0;
	tuple_reverse(&track->becomes, &w->victim.turned);
	if (!tuple_same(&w->victim.turned, &w->victim.key))
		return 0;
	ct_add_up(track);
	ct_clear(at, hash);
	return 0;
}

/* Whether the key of a new entry is in another place, or may come to be, of one of its sets. Not
 * static: the verifier looks at it once. */
__noinline int ct_twin(const struct conntrack_set *set, const struct tuple *key, __u32 tag,
		       __u32 own)
{
	if (!set || !key)
		return 1;
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u32 there = tag_at(&set->head, place);

		if (place == own || (there & ~SET_CLAIMED) != tag)
			continue;
		if (there != tag || tuple_same(&set->entries[place].key, key))
			return 1;
	}
	return 0;
}

/* Writes an entry into a place that has been claimed. */
static __always_inline void ct_write(struct conntrack_set *set, __u32 place,
				     const struct tuple *key, const struct track *track,
				     struct set_mark mark)
{
	struct conntrack_entry *entry = &set->entries[place];

	write_tag(&entry->track.tag, 0);
	entry->key = *key;
	entry->track.becomes = track->becomes;
	entry->track.service = track->service;
	entry->track.backend = track->backend;
	entry->track.last_seen = track->last_seen;
	entry->track.state = track->state;
	entry->track.flags = track->flags;
	entry->track.dsr = track->dsr;
	entry->track.reserved = 0;
	entry->track.device = track->device;
	entry->track.acked = track->acked;
	entry->track.next = track->next;
	entry->track.packets = track->packets;
	entry->track.bytes = track->bytes;
	set->head.marks[place] = mark;
	write_tag(&entry->track.tag, track->tag);
	write_tag(&set->head.tags[place], set_tag(track->tag));
}

enum ct_stored {
	CT_STORED,
	CT_THERE,  /* and is to stay */
	CT_FULL,   /* nothing gives way */
	CT_FAILED, /* others were quicker each time */
};

/* A place for a new entry. */
struct ct_choice {
	__u32 number; /* of the set */
	__u32 room;   /* enum set_room */
};

/* A place for a new entry: in its set, or in the other one if that has room where its own has
 * none. */
static __always_inline void ct_choose(struct ct_choice *choice, __u64 sum, int half_open,
				      __u32 owner, __u32 now)
{
	__u32 second = set_second(sum, tracks_sets), room;
	struct conntrack_set *set;

	choice->number = set_first(sum, half_open ? half_open_sets : tracks_sets);
	set = ct_set_of(half_open, choice->number);
	choice->room = set ? set_room(&set->head, owner, now) : ROOM_NONE;
	if (half_open || !set || choice->room & (ROOM_FREE | ROOM_DEAD))
		return;
	set = ct_set_of(0, second);
	room = set ? set_room(&set->head, owner, now) : ROOM_NONE;
	if (!(room & (ROOM_FREE | ROOM_DEAD)))
		return;
	set = ct_set_of(0, choice->number);
	if (set && !set->head.spilled)
		__sync_lock_test_and_set(&set->head.spilled, 1);
	choice->number = second;
	choice->room = room;
}

/* Whether another writer stores the same key meanwhile, in either of its sets. */
static __always_inline int ct_contended(__u64 sum, int half_open, __u32 number,
					const struct tuple *key, __u32 tag, __u32 place)
{
	__u32 other;

	if (ct_twin(ct_set_of(half_open, number), key, tag, place))
		return 1;
	if (half_open)
		return 0;
	other = set_first(sum, tracks_sets);
	if (other == number)
		other = set_second(sum, tracks_sets);
	return other != number && ct_twin(ct_set_of(0, other), key, tag, SET_PLACES);
}

/* Tries once to store an entry. Not static: the verifier looks at it once. Returns enum ct_stored.
 */
__noinline int ct_try(const struct tuple *key, const struct track *track,
		      enum conntrack_table table, __u32 only_new)
{
	__u32 half_open = table == IN_HALF_OPEN ? CT_HALF_OPEN : 0, place, there, at, now, tag;
	struct workspace *w = workspace_get();
	struct conntrack_entry *victim;
	struct conntrack_set *set;
	struct ct_choice choice;
	struct set_mark mark;
	int contended;
	__u64 sum;

	if (!w || !key || !track)
		return CT_FAILED;
	mark = ct_mark_of(w, key->protocol, track, half_open != 0);
	now = tick_of(w);
	tag = set_tag(track->tag);
	sum = ct_sum(key);
	at = ct_at(key, track->tag, only_new ? IN_ANY : table);
	if (at != CT_NOWHERE && only_new)
		return CT_THERE;
	if (at != CT_NOWHERE) {
		choice.number = (at & ~CT_HALF_OPEN) >> 4;
		place = ct_place(at);
	} else {
		ct_choose(&choice, sum, half_open, mark.owner, now);
		place = ct_place(choice.room);
		if (choice.room & ROOM_NONE)
			return CT_FULL;
	}
	set = ct_set_of(half_open, choice.number);
	if (!set || place >= SET_PLACES)
		return CT_FULL;
	there = at != CT_NOWHERE ? tag : tag_at(&set->head, place);
	if (!set_claim(&set->head, place, there, track->tag))
		return CT_FAILED;
	victim = &set->entries[place];
	w->victim.evicted = there && at == CT_NOWHERE && victim->track.tag;
	if (w->victim.evicted) {
		ct_add_up(&victim->track);
		w->victim.key = victim->key;
		tuple_reverse(&victim->track.becomes, &w->victim.other);
		if (victim->track.dsr)
			w->victim.evicted = 0;
	}
	contended = ct_contended(sum, half_open, choice.number, key, tag, place);
	if (contended) /* what was here is gone all the same */
		write_tag(&set->head.tags[place], 0);
	else
		ct_write(set, place, key, track, mark);
	if (w->victim.evicted)
		ct_evict_other();
	return contended ? CT_FAILED : CT_STORED;
}

/* Stores an entry with its tag; `only_new`: unless its key has one in either table. Returns enum
 * ct_stored. */
static __always_inline int ct_store(const struct tuple *key, const struct track *track,
				    enum conntrack_table table, __u32 only_new)
{
	int stored = ct_try(key, track, table, only_new);

	for (int i = 1; i < SET_TRIES && stored == CT_FAILED; i++)
		stored = ct_try(key, track, table, only_new);
	return stored;
}
