/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows at the edge: which packet belongs to which, what it becomes, where a flow begins and ends.
 * What a packet tells of its flow is in track_note.h. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack_table.h"
#include "door.h"
#include "edge_tables.h"
#include "packet.h"
#include "select.h"
#include "tuple.h"
#include "workspace.h"

/* The entry of a packet; its place may be another one's at any time. */
static __always_inline struct track *track_find(const struct tuple *tuple, __u32 hash, int *half)
{
	__u32 at = ct_at(tuple, hash, IN_ANY);

	*half = (at & CT_HALF_OPEN) != 0; /* of no meaning where there is no entry */
	return ct_track(at);
}

/* Copies what a packet becomes. Returns whether the record was the packet's all
 * the while. */
static __always_inline int track_read(const struct track *track, __u32 hash, struct tuple *to)
{
	*to = track->becomes;
	barrier();
	return *(const volatile __u32 *)&track->tag == hash;
}

/* What a backend of this node answers is given the Service's name where it leaves: the
 * stack would take a packet from an address of its own for a forgery. */
static __always_inline int answers_here(const struct track *track)
{
	return (track->flags & ~(TRACK_FIN | TRACK_DSR | TRACK_LATER)) ==
	       (TRACK_REPLY | TRACK_LOCAL);
}

/* Has the door let in what a record is for. */
static __always_inline void track_admit(const struct tuple *key, const struct track *track)
{
	door_admit(key, answers_here(track));
}

/* The other record of a flow, but for its tag. */
static __always_inline void track_turn(const struct tuple *key, const struct track *track,
				       struct tuple *other_key, struct track *other)
{
	tuple_reverse(&track->becomes, other_key);
	__builtin_memset(other, 0, sizeof(*other));
	tuple_reverse(key, &other->becomes);
	other->service = track->service;
	other->backend = track->backend;
	other->last_seen = track->last_seen;
	other->device = track->device;
	other->state = track->state;
	if (key->protocol == IPPROTO_UDP)
		other->next = track->next;
	other->flags = (track->flags ^ TRACK_REPLY) &
		       (TRACK_REPLY | TRACK_LOCAL | TRACK_OUTBOUND | TRACK_DSR);
}

/* The other record of a packet's flow, if it is there. */
static __always_inline struct track *track_other(struct workspace *w, const struct track *track)
{
	struct track *other;
	int half;

	if (track->dsr)
		return 0;
	tuple_reverse(&track->becomes, &w->other_key);
	other = track_find(&w->other_key, tuple_hash(&w->other_key), &half);
	if (!other)
		return 0;
	tuple_reverse(&other->becomes, &w->other.becomes);
	return tuple_equal(&w->other.becomes, &w->packet.tuple) ? other : 0;
}

/* Moves a packet's flow to those that are assured. If there is no room it stays where it is, and
 * the next packet tries again. Not static, as the next ones: the verifier looks at it once. Each
 * looks for the workspace itself, as begin_flow does. */
__noinline int track_promote(const struct track *half)
{
	struct workspace *w = workspace_get();
	struct track *other;

	if (!w || !half)
		return 0;
	w->track = *half;
	if (w->track.state <= TRACK_ANSWERED)
		w->track.state = TRACK_ESTABLISHED;
	track_admit(&w->packet.tuple, &w->track);
	if (w->track.dsr) {
		if (ct_store(&w->packet.tuple, &w->track, IN_TRACKS, 0) == CT_STORED)
			ct_remove(&w->packet.tuple, w->hash, IN_HALF_OPEN);
		return 0;
	}
	other = track_other(w, half);
	track_turn(&w->packet.tuple, &w->track, &w->other_key, &w->other);
	w->other.tag = tuple_hash(&w->other_key);
	if (other) {
		w->other.acked = other->acked;
		w->other.flags |= other->flags & (TRACK_FIN | TRACK_LATER);
		w->other.packets = other->packets;
		w->other.bytes = other->bytes;
	}
	track_admit(&w->other_key, &w->other);
	if (ct_store(&w->other_key, &w->other, IN_TRACKS, 0) != CT_STORED)
		return 0;
	if (ct_store(&w->packet.tuple, &w->track, IN_TRACKS, 0) != CT_STORED) {
		ct_remove(&w->other_key, w->other.tag, IN_TRACKS);
		return 0;
	}
	ct_remove(&w->other_key, w->other.tag, IN_HALF_OPEN);
	ct_remove(&w->packet.tuple, w->hash, IN_HALF_OPEN);
	return 0;
}

/* Where a side is in its TCP stream. 0 is for what is not known, and 1 is as good. */
static __always_inline void track_sequence(const struct packet *p, struct track *track, int half)
{
	__u32 next =
		p->sequence + p->payload + !!(p->tcp_flags & TCP_SYN) + !!(p->tcp_flags & TCP_FIN);

	if (p->tuple.protocol != IPPROTO_TCP || p->fragment == FRAGMENT_LATER)
		return;
	if (p->tcp_flags & TCP_ACK)
		track->acked = p->acknowledged ? p->acknowledged : 1;
	if (half || track->dsr)
		track->next = next ? next : 1;
}

/* Whether a packet neither begins a connection nor goes on with one, so that nothing is kept or
 * lent for it if it has no entry. SCTP's chunks that end an association look the same. A flow that
 * the history of its slot knows has a state. */
static __always_inline int begins_nothing(const struct workspace *w)
{
	const struct packet *p = &w->packet;
	__u8 flags = p->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK);

	if (p->fragment == FRAGMENT_LATER || p->tuple.protocol == IPPROTO_UDP ||
	    w->track.state != TRACK_NEW)
		return 0;
	if (p->tcp_flags & (TCP_FIN | TCP_RST))
		return 1;
	return p->tuple.protocol == IPPROTO_TCP && flags != TCP_SYN && flags != TCP_ACK;
}

/* Where a flow begins. */
static __always_inline void track_first(struct workspace *w)
{
	track_sequence(&w->packet, &w->track, 1);
	if (w->packet.tuple.protocol == IPPROTO_UDP)
		w->track.next = second_of(w);
}

/* Stores the entry of a new flow of which one side is seen (DSR). */
static __always_inline int track_begin_alone(struct workspace *w)
{
	if (dry_run)
		return 0;
	w->track.becomes = w->to;
	track_first(w);
	track_admit(&w->packet.tuple, &w->track);
	return ct_store(&w->packet.tuple, &w->track, IN_HALF_OPEN, 0);
}

/* The record of a packet whose flow has the other one. */
static __always_inline int track_adopt(struct workspace *w, int half)
{
	if (dry_run)
		return 0;
	track_admit(&w->packet.tuple, &w->track);
	return ct_store(&w->packet.tuple, &w->track, half ? IN_HALF_OPEN : IN_TRACKS, 0);
}

/* How long a flow is idle at least before it may have expired, in seconds: until then nobody looks.
 */
#define LEAST_TIMEOUT 1

/* Whether a flow has been idle for longer than it is remembered. Not static: the verifier looks at
 * it once. */
__noinline int track_expired(__u32 hash)
{
	struct workspace *w = workspace_get();
	const struct set_mark *mark;
	__u32 at;

	if (!w)
		return 0;
	at = ct_at(&w->packet.tuple, hash, IN_ANY);
	mark = ct_mark(at);
	return mark && mark_expired(mark, tick_of(w));
}

/* Whether a packet begins another flow with the ends of one that has ended, or expired. A segment
 * in the middle of a TCP connection belongs to that, however old it is. */
static __always_inline int track_over(struct workspace *w, const struct track *track)
{
	const struct packet *p = &w->packet;

	if (track->flags & TRACK_REPLY)
		return 0;
	if (p->tcp_flags & TCP_SYN && track->state >= TRACK_CLOSING)
		return 1;
	if (!(p->tcp_flags & TCP_SYN) && p->tuple.protocol != IPPROTO_UDP)
		return 0;
	return second_of(w) - track->last_seen > LEAST_TIMEOUT && track_expired(w->hash);
}

/* Whether a packet answers a SYN that has not come here: a client has asked the backend itself,
 * with the port that a flow had which is over. Else that flow's name would be on what it gets. */
static __always_inline int track_astray(const struct track *track, const struct packet *p)
{
	return track->flags & TRACK_REPLY && track->flags & (TRACK_OUTBOUND | TRACK_LOCAL) &&
	       track->state >= TRACK_CLOSING && p->tcp_flags & TCP_SYN;
}

/* Forgets a flow that is over, for the same ends begin another one. */
__noinline int track_end(const struct track *track)
{
	struct workspace *w = workspace_get();
	struct track *other;

	if (!w || !track || dry_run)
		return 0;
	ct_add_up(track);
	other = track_other(w, track);
	if (other) {
		ct_add_up(other);
		ct_remove(&w->other_key, tuple_hash(&w->other_key), IN_ANY);
	}
	ct_remove(&w->packet.tuple, w->hash, IN_ANY);
	return 0;
}

/* Marks both entries of a packet's flow as seen now, in the state that the flow has. An entry of an
 * assured flow that has been lost is made anew from the other one. */
__noinline int track_refresh(const struct track *track)
{
	struct workspace *w = workspace_get();
	struct set_mark *mark, fresh;
	const struct track *other;
	__u32 at, hash;

	if (!w || !track)
		return 0;
	at = ct_at(&w->packet.tuple, w->hash, IN_ANY);
	mark = ct_mark(at);
	if (!mark)
		return 0;
	fresh = ct_mark_of(w, w->packet.tuple.protocol, track, (at & CT_HALF_OPEN) != 0);
	*mark = fresh;
	if (track->dsr)
		return 0;
	other = track_other(w, track);
	hash = tuple_hash(&w->other_key);
	if (other) {
		at = ct_at(&w->other_key, hash, IN_ANY);
		mark = ct_mark(at);
		if (mark)
			*mark = fresh;
	} else if (!(at & CT_HALF_OPEN)) {
		track_turn(&w->packet.tuple, track, &w->other_key, &w->other);
		w->other.tag = hash;
		track_admit(&w->other_key, &w->other);
		ct_store(&w->other_key, &w->other, IN_TRACKS, 1);
	}
	return 0;
}
