/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The conntrack tables (set_table/set_table.h):
 *
 *   conntrack  assured flows: TCP whose handshake is complete, and flows that have continued in
 *              both directions. An entry whose set is full spills to a second one.
 *   unreplied  all other flows: handshakes, one-shot UDP. A flood fills only this table.
 *
 * A flow has an entry per direction and is evicted as a whole: a writer that evicts one entry
 * deletes the other. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/maps.h"
#include "conntrack/types.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "set_table/set_table.h"
#include "set_table/types.h"
#include "state/counters.h"
#include "state/scratch.h"
#include "state/types.h"

/* Number of sets; set by the loader. */
const volatile __u32 conntrack_sets = 1;
const volatile __u32 unreplied_sets = 1;

/* By enum ct_timeout, in ticks; set by the loader. The values are those of DefaultTimeouts
 * (internal/conntrack/timeouts.go). */
const volatile __u32 ct_timeouts[TIMEOUTS] = {
	[TIMEOUT_TCP_UNREPLIED] = SECONDS_TO_TICKS(60),
	[TIMEOUT_UDP_UNREPLIED] = SECONDS_TO_TICKS(30),
	[TIMEOUT_TCP_ESTABLISHED] = SECONDS_TO_TICKS(8 * 3600),
	[TIMEOUT_UDP_STREAM] = SECONDS_TO_TICKS(120),
	[TIMEOUT_CLOSING] = SECONDS_TO_TICKS(3600),
	[TIMEOUT_CLOSING_DSR] = SECONDS_TO_TICKS(60),
	[TIMEOUT_CLOSED] = SECONDS_TO_TICKS(120),
};

enum ct_table {
	CT_TABLE_ASSURED = 1,
	CT_TABLE_UNREPLIED = 2,
	CT_TABLE_ANY = 3,
};

/* The location of an entry in one word: table, number of the set, place in the set. */
#define CT_NOT_FOUND	0xffffffff
#define CT_AT_UNREPLIED 0x80000000

static __always_inline __u32 ct_place(__u32 at)
{
	__u32 place = at & 15;

	barrier_var(place); /* otherwise the compiler compares it with != 15, of which the verifier
			       of Linux 6.1 learns nothing */
	return place;
}

static __always_inline struct ct_set *ct_set_of(__u32 unreplied_bit, __u32 number)
{
	return unreplied_bit ? bpf_map_lookup_elem(&unreplied, &number)
			     : bpf_map_lookup_elem(&conntrack, &number);
}

static __always_inline struct set_tags *ct_tags_of(__u32 unreplied_bit, __u32 number)
{
	return unreplied_bit ? bpf_map_lookup_elem(&unreplied_tags, &number)
			     : bpf_map_lookup_elem(&conntrack_tags, &number);
}

static __always_inline struct ct_set *ct_set_at(__u32 at)
{
	return ct_set_of(at & CT_AT_UNREPLIED, (at & ~CT_AT_UNREPLIED) >> 4);
}

static __always_inline struct set_tags *ct_tags(__u32 at)
{
	return ct_tags_of(at & CT_AT_UNREPLIED, (at & ~CT_AT_UNREPLIED) >> 4);
}

static __always_inline __u32 ct_search(__u32 unreplied_bit, __u32 number, const struct tuple *key,
				       __u32 hash)
{
	const struct set_tags *tags = ct_tags_of(unreplied_bit, number);
	const struct ct_set *set;
	__u32 tag = set_tag(hash);

	if (!tags)
		return CT_NOT_FOUND;
	set = ct_set_of(unreplied_bit, number);
	if (!set)
		return CT_NOT_FOUND;
	for (__u32 place = 0; place < SET_PLACES; place++)
		if (tag_at(tags, place) == tag && tuple_same(&set->entries[place].key, key) &&
		    *(volatile __u32 *)&set->entries[place].ct.tag == hash)
			return unreplied_bit | number << 4 | place;
	return CT_NOT_FOUND;
}

static __always_inline __u64 ct_sum(const struct tuple *key)
{
	return set_sum(key, sizeof(*key) / sizeof(__u32));
}

/* Searches the two sets of assured flows that a key may be in. */
static __always_inline __u32 ct_search_assured(const struct tuple *key, __u32 hash, __u64 sum)
{
	__u32 number = set_first(sum, conntrack_sets), at = ct_search(0, number, key, hash);
	const struct set_tags *tags;

	if (at != CT_NOT_FOUND)
		return at;
	tags = ct_tags_of(0, number);
	if (tags && *(const volatile __u32 *)&tags->spilled)
		at = ct_search(0, set_second(sum, conntrack_sets), key, hash);
	return at;
}

/* Returns the location of the entry of a key; CT_NOT_FOUND if there is none. ct_assure adds a flow
 * to `conntrack` before it deletes it from `unreplied`, maybe on another CPU between the two
 * searches here: what neither has found is searched for again. Global function: the verifier checks
 * it once. */
__noinline __u32 ct_find(const struct tuple *key, __u32 hash, enum ct_table tables)
{
	__u32 at = CT_NOT_FOUND;
	__u64 sum;

	if (!key)
		return CT_NOT_FOUND;
	sum = ct_sum(key);
	if (tables & CT_TABLE_ASSURED)
		at = ct_search_assured(key, hash, sum);
	if (at != CT_NOT_FOUND || !(tables & CT_TABLE_UNREPLIED))
		return at;
	at = ct_search(CT_AT_UNREPLIED, set_first(sum, unreplied_sets), key, hash);
	if (at != CT_NOT_FOUND || !(tables & CT_TABLE_ASSURED))
		return at;
	set_read_barrier();
	return ct_search_assured(key, hash, sum);
}

/* Returns the entry at a location; 0 for CT_NOT_FOUND, because no table has a set of that number.
 */
static __always_inline struct ct_entry *ct_entry_at(__u32 at)
{
	struct ct_set *set = ct_set_at(at);
	__u32 place = ct_place(at);

	if (!set || place >= SET_PLACES)
		return 0;
	barrier_var(set); /* otherwise the compiler adds the place before the checks */
	return &set->entries[place].ct;
}

/* Returns the eviction data at a location; 0 for CT_NOT_FOUND. */
static __always_inline struct set_eviction *ct_eviction_at(__u32 at)
{
	struct ct_set *set = ct_set_at(at);
	__u32 place = ct_place(at);

	if (!set || place >= SET_PLACES)
		return 0;
	barrier_var(set); /* as in ct_entry_at */
	return &set->evictions.evictions[place];
}

/* Returns the timeout of a flow, in ticks. */
static __always_inline __u32 ct_timeout(__u8 protocol, const struct ct_entry *ct)
{
	int udp = protocol == IPPROTO_UDP;

	switch (ct->state) {
	case CT_NEW:
	case CT_REPLIED:
		return ct_timeouts[udp ? TIMEOUT_UDP_UNREPLIED : TIMEOUT_TCP_UNREPLIED];
	case CT_ESTABLISHED:
		return ct_timeouts[udp ? TIMEOUT_UDP_STREAM : TIMEOUT_TCP_ESTABLISHED];
	case CT_CLOSING:
		return ct_timeouts[ct->dsr ? TIMEOUT_CLOSING_DSR : TIMEOUT_CLOSING];
	default:
		return ct_timeouts[TIMEOUT_CLOSED];
	}
}

/* Returns the rank of an entry. */
static __always_inline enum set_rank ct_rank(__u8 protocol, enum ct_state state, int unreplied)
{
	if (state == CT_CLOSED)
		return SET_RANK_CLOSED;
	if (unreplied)
		return SET_RANK_UNASSURED;
	if (state == CT_CLOSING)
		return SET_RANK_CLOSING;
	return protocol == IPPROTO_UDP ? SET_RANK_ASSURED : SET_RANK_TCP;
}

/* The eviction data of an entry in `conntrack` is updated at most once in this many seconds, and
 * lags by up to that. */
#define MARK_SECONDS 8

/* Returns the eviction data of a flow that was seen now. */
static __always_inline struct set_eviction ct_eviction_of(struct scratch *w, __u8 protocol,
							  const struct ct_entry *ct, int unreplied)
{
	__u32 slack = unreplied ? 0 : SECONDS_TO_TICKS(MARK_SECONDS);
	struct set_eviction mark = {
		.expires = w->clock.tick + ct_timeout(protocol, ct) + slack,
		.owner = eviction_owner(ct->lb.service, ct_rank(protocol, ct->state, unreplied)),
	};

	return mark;
}

/* Deletes the entry at a location, if its tag still has the hash. */
static __always_inline void ct_delete_at(__u32 at, __u32 hash)
{
	struct set_tags *tags = ct_tags(at);
	__u32 place = ct_place(at);

	if (tags && place < SET_PLACES)
		__sync_val_compare_and_swap(&tags->tags[place], set_tag(hash), 0);
}

/* Deletes the entry of a key, if there is one. Global function: the verifier checks it once. */
__noinline int ct_delete(const struct tuple *key, __u32 hash, enum ct_table tables)
{
	__u32 at = ct_find(key, hash, tables);

	ct_delete_at(at, hash);
	return 0;
}

/* Adds the packets of an entry to the counters of its Service, before the entry is deleted. */
static __always_inline void ct_account(const struct ct_entry *ct)
{
	struct service_counters *counters = service_counters_get(ct->lb.service);

	if (!counters)
		return;
	if (ct->flags & CT_REPLY) {
		counters->received_packets += ct->packets;
		counters->received_bytes += ct->bytes;
	} else {
		counters->sent_packets += ct->packets;
		counters->sent_bytes += ct->bytes;
	}
}

/* Deletes the other entry of an evicted flow: the entry of w->ct.victim.other, if its reversed
 * translation is w->ct.victim.key. Global function: the verifier checks it once. */
__noinline int ct_evict_reverse(void)
{
	struct scratch *w = scratch_get();
	struct ct_entry *ct;
	__u32 hash, at;

	if (!w)
		return 0;
	hash = tuple_hash(&w->ct.victim.other);
	at = ct_find(&w->ct.victim.other, hash, CT_TABLE_ANY);
	ct = ct_entry_at(at);
	if (!ct)
		return 0;
	tuple_reverse(&ct->xlate, &w->ct.victim.reversed);
	if (!tuple_same(&w->ct.victim.reversed, &w->ct.victim.key))
		return 0;
	ct_account(ct);
	ct_delete_at(at, hash);
	return 0;
}

/* Returns whether the key of a new entry is, or may be about to be, in another place of a set.
 * Global function: the verifier checks it once. */
__noinline int ct_duplicate(const struct set_tags *tags, const struct ct_set *set,
			    const struct tuple *key, __u32 tag, __u32 own)
{
	__u32 others = ~(1u << (own & 31));

	if (!tags || !set || !key)
		return 1;
	for (__u32 place = 0; place < SET_PLACES; place++) {
		__u32 there = tag_at(tags, place);

		if (!(others >> place & 1) || (there & ~SET_CLAIMED) != tag)
			continue;
		if (there != tag || tuple_same(&set->entries[place].key, key))
			return 1;
	}
	return 0;
}

/* Fills a place that the caller has claimed, and publishes it. */
static __always_inline void ct_write(struct set_tags *tags, struct ct_set *set,
				     struct ct_slot *entry, __u32 place, const struct tuple *key,
				     const struct ct_entry *ct, struct set_eviction mark)
{
	write_tag(&entry->ct.tag, 0);
	entry->key = *key;
	entry->ct.xlate = ct->xlate;
	entry->ct.lb.service = ct->lb.service;
	entry->ct.lb.backend = ct->lb.backend;
	entry->ct.last_seen = ct->last_seen;
	entry->ct.state = ct->state;
	entry->ct.flags = ct->flags;
	entry->ct.dsr = ct->dsr;
	entry->ct.device = ct->device;
	entry->ct.acked = ct->acked;
	entry->ct.next = ct->next;
	entry->ct.follows = ct->follows;
	entry->ct.packets = ct->packets;
	entry->ct.bytes = ct->bytes;
	set->evictions.evictions[place] = mark;
	write_tag(&entry->ct.tag, ct->tag);
	write_tag(&tags->tags[place], set_tag(ct->tag));
}

enum ct_inserted {
	CT_INSERTED,
	CT_EXISTS,	  /* the key has an entry, which stays */
	CT_INSERT_FULL,	  /* no entry may be evicted */
	CT_INSERT_FAILED, /* other writers won each race */
};

/* The place picked for a new entry. */
struct ct_pick {
	__u32 number; /* of the set */
	__u32 pick;   /* enum set_pick */
};

static __always_inline __u32 ct_pick_in(int unreplied, __u32 number, __u32 owner, __u32 now)
{
	const struct set_tags *tags = ct_tags_of(unreplied, number);
	const struct ct_set *set;

	if (!tags)
		return PICK_NONE;
	set = ct_set_of(unreplied, number);
	return set ? set_pick(tags, &set->evictions, owner, now) : PICK_NONE;
}

/* Picks a place for a new entry: in its first set, or in the second one if the first is full and
 * the second is not. */
static __always_inline void ct_pick_place(struct ct_pick *where, __u64 sum, int unreplied,
					  __u32 owner, __u32 now)
{
	__u32 second = set_second(sum, conntrack_sets), pick;
	struct set_tags *tags;

	where->number = set_first(sum, unreplied ? unreplied_sets : conntrack_sets);
	where->pick = ct_pick_in(unreplied, where->number, owner, now);
	if (unreplied || where->pick & (PICK_FREE | PICK_DEAD))
		return;
	pick = ct_pick_in(0, second, owner, now);
	if (!(pick & (PICK_FREE | PICK_DEAD)))
		return;
	tags = ct_tags_of(0, where->number);
	if (tags && !tags->spilled)
		__sync_lock_test_and_set(&tags->spilled, 1);
	where->number = second;
	where->pick = pick;
}

/* Returns whether another writer is inserting the same key, in either of its sets. */
static __always_inline int ct_contended(__u64 sum, int unreplied, __u32 number,
					const struct tuple *key, __u32 tag, __u32 place)
{
	__u32 other;

	if (ct_duplicate(ct_tags_of(unreplied, number), ct_set_of(unreplied, number), key, tag,
			 place))
		return 1;
	if (unreplied)
		return 0;
	other = set_first(sum, conntrack_sets);
	if (other == number)
		other = set_second(sum, conntrack_sets);
	return other != number &&
	       ct_duplicate(ct_tags_of(0, other), ct_set_of(0, other), key, tag, SET_PLACES);
}

/* Tries once to insert an entry. Returns enum ct_inserted. Global function: the verifier checks it
 * once. */
__noinline int ct_insert_once(const struct tuple *key, const struct ct_entry *ct,
			      enum ct_table table, __u32 only_new)
{
	__u32 unreplied = table == CT_TABLE_UNREPLIED ? CT_AT_UNREPLIED : 0, place, there, at, now,
	      tag;
	struct scratch *w = scratch_get();
	struct ct_slot *victim;
	struct ct_set *set;
	struct set_tags *tags;
	struct ct_pick where;
	struct set_eviction mark;
	__u64 sum, bounded;
	int contended;

	if (!w || !key || !ct)
		return CT_INSERT_FAILED;
	mark = ct_eviction_of(w, key->protocol, ct, unreplied != 0);
	now = w->clock.tick;
	tag = set_tag(ct->tag);
	sum = ct_sum(key);
	at = ct_find(key, ct->tag, only_new ? CT_TABLE_ANY : table);
	if (at != CT_NOT_FOUND && only_new)
		return CT_EXISTS;
	if (at != CT_NOT_FOUND) {
		where.number = (at & ~CT_AT_UNREPLIED) >> 4;
		place = ct_place(at);
	} else {
		ct_pick_place(&where, sum, unreplied, mark.owner, now);
		place = ct_place(where.pick);
		if (where.pick & PICK_NONE)
			return CT_INSERT_FULL;
	}
	tags = ct_tags_of(unreplied, where.number);
	if (!tags)
		return CT_INSERT_FULL;
	set = ct_set_of(unreplied, where.number);
	if (!set)
		return CT_INSERT_FULL;
	bounded = place;
	/* In assembly, because Linux 6.1 does not apply the result of a comparison to a copy on the
	 * stack, and the compiler may use the copy. The caller's place is always in bounds. */
	_Static_assert(SET_PLACES == 15, "the bound below");
	asm volatile("if %[place] < 15 goto +1\n\t%[place] = 14" : [place] "+r"(bounded));
	victim = &set->entries[bounded];
	barrier_var(victim); /* keeps the compiler from computing the address again later */
	if (at != CT_NOT_FOUND && !unreplied && tuple_same(&victim->ct.xlate, &ct->xlate))
		return CT_INSERTED; /* by another CPU; nobody finds an entry while it is written */
	there = at != CT_NOT_FOUND ? tag : tag_at(tags, place);
	if (at == CT_NOT_FOUND &&
	    (set_pick_is_stale(where.pick, there, tag) ||
	     (there && !set_may_evict(tags, &set->evictions, place, mark.owner, now))))
		return CT_INSERT_FAILED;
	if (!set_claim(tags, place, there, ct->tag))
		return CT_INSERT_FAILED;
	w->ct.victim.evicted = there && at == CT_NOT_FOUND && victim->ct.tag;
	if (w->ct.victim.evicted) {
		ct_account(&victim->ct);
		w->ct.victim.key = victim->key;
		tuple_reverse(&victim->ct.xlate, &w->ct.victim.other);
		if (victim->ct.dsr)
			w->ct.victim.evicted = 0;
	}
	contended = ct_contended(sum, unreplied, where.number, key, tag, place);
	if (contended) /* the previous entry is lost in any case */
		write_tag(&tags->tags[place], 0);
	else
		ct_write(tags, set, victim, place, key, ct, mark);
	if (w->ct.victim.evicted)
		ct_evict_reverse();
	return contended ? CT_INSERT_FAILED : CT_INSERTED;
}

/* Inserts an entry; `only_new`: only if no table has an entry of the key. Returns enum ct_inserted.
 */
static __always_inline int ct_insert(const struct tuple *key, const struct ct_entry *ct,
				     enum ct_table table, __u32 only_new)
{
	int stored = ct_insert_once(key, ct, table, only_new);

	for (int i = 1; i < SET_TRIES && stored == CT_INSERT_FAILED; i++)
		stored = ct_insert_once(key, ct, table, only_new);
	return stored;
}
