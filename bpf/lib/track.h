/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows at the edge: which packet belongs to which, and what it becomes. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "door.h"
#include "edge_tables.h"
#include "half_open.h"
#include "packet.h"
#include "select.h"
#include "tuple.h"
#include "workspace.h"

/* Notes that records have been stored in `tracks`: afterwards, or the agent would see neither
 * them nor that they are there. */
static __always_inline void tracks_made(__u32 number)
{
	__u32 key = ROOM_MADE;
	__u64 *made = bpf_map_lookup_elem(&tracks_room, &key);

	if (made)
		__sync_fetch_and_add(made, number);
}

/* Whether records of `tracks` may have been displaced. */
static __always_inline int tracks_scarce(void)
{
	__u32 first = ROOM_MADE, second = ROOM_ENOUGH;
	__u64 *made = bpf_map_lookup_elem(&tracks_room, &first);
	__u64 *enough = bpf_map_lookup_elem(&tracks_room, &second);

	return !made || !enough || *made >= *enough;
}

/* A record that the kernel has just given to another key is as good as none. */
static __always_inline struct track *track_find(const struct tuple *tuple, __u32 hash, int *half)
{
	struct track *track = bpf_map_lookup_elem(&tracks, tuple);

	*half = 0;
	if (track && track->tag == hash)
		return track;
	*half = 1;
	return half_open_find(tuple, hash);
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
	return (track->flags & ~(TRACK_FIN | TRACK_DSR)) == (TRACK_REPLY | TRACK_LOCAL);
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

/* Moves a packet's flow to those of which both sides have been heard. Not static, as the next ones:
 * the verifier looks at it once. Each looks for the workspace itself, as begin_flow does. */
__noinline int track_promote(const struct track *half)
{
	struct workspace *w = workspace_get();
	struct track *other;

	if (!w || !half)
		return 0;
	w->track = *half;
	if (w->track.state == TRACK_NEW)
		w->track.state = TRACK_ESTABLISHED;
	track_admit(&w->packet.tuple, &w->track);
	if (w->track.dsr) {
		if (!bpf_map_update_elem(&tracks, &w->packet.tuple, &w->track, BPF_ANY)) {
			tracks_made(1);
			half_open_remove(&w->packet.tuple, w->hash);
		}
		return 0;
	}
	other = track_other(w, half);
	track_turn(&w->packet.tuple, &w->track, &w->other_key, &w->other);
	w->other.tag = tuple_hash(&w->other_key);
	if (other) {
		w->other.acked = other->acked;
		w->other.flags |= other->flags & TRACK_FIN;
		w->other.packets = other->packets;
		w->other.bytes = other->bytes;
	}
	track_admit(&w->other_key, &w->other);
	if (bpf_map_update_elem(&tracks, &w->other_key, &w->other, BPF_ANY))
		return 0; /* the next packet tries again */
	tracks_made(1);
	if (bpf_map_update_elem(&tracks, &w->packet.tuple, &w->track, BPF_ANY))
		return 0;
	tracks_made(1);
	half_open_remove(&w->other_key, w->other.tag);
	half_open_remove(&w->packet.tuple, w->hash);
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

/* The record of a new flow of which one side is seen (DSR). */
static __always_inline int track_begin_alone(struct workspace *w)
{
	if (dry_run)
		return 0;
	w->track.becomes = w->to;
	track_sequence(&w->packet, &w->track, 1);
	track_admit(&w->packet.tuple, &w->track);
	return half_open_store(&w->packet.tuple, &w->track, 0);
}

/* The record of a packet whose flow has the other one. */
static __always_inline int track_adopt(struct workspace *w, int half)
{
	if (dry_run)
		return 0;
	track_admit(&w->packet.tuple, &w->track);
	if (half)
		return half_open_store(&w->packet.tuple, &w->track, 0);
	if (bpf_map_update_elem(&tracks, &w->packet.tuple, &w->track, BPF_ANY))
		return -1;
	tracks_made(1);
	return 0;
}

/* Whether a packet begins another flow with the ends of one that has ended. */
static __always_inline int track_over(const struct track *track, const struct packet *p)
{
	return track->state >= TRACK_CLOSING && p->tcp_flags & TCP_SYN &&
	       !(track->flags & TRACK_REPLY);
}

/* Whether a packet answers a SYN that has not come here: one of this node's has asked a backend
 * itself, with the port that a flow had which is over. Else that flow's name would be on what it
 * gets. */
static __always_inline int track_astray(const struct track *track, const struct packet *p)
{
	return (track->flags & (TRACK_OUTBOUND | TRACK_REPLY)) == (TRACK_OUTBOUND | TRACK_REPLY) &&
	       track->state >= TRACK_CLOSING && p->tcp_flags & TCP_SYN;
}

/* Keeps what a flow had whose records go. */
static __always_inline void track_add_up(const struct track *track, const struct track *reply)
{
	struct service_counters *counters = counters_of(track->service);

	if (!counters)
		return;
	counters->sent_packets += track->packets;
	counters->sent_bytes += track->bytes;
	if (!reply)
		return;
	counters->received_packets += reply->packets;
	counters->received_bytes += reply->bytes;
}

/* Forgets a flow that is over, for the same ends begin another one. */
__noinline int track_end(const struct track *track)
{
	struct workspace *w = workspace_get();

	if (!w || !track || dry_run)
		return 0;
	track_add_up(track, track_other(w, track));
	if (!track->dsr) {
		tuple_reverse(&track->becomes, &w->other_key);
		bpf_map_delete_elem(&tracks, &w->other_key);
		half_open_remove(&w->other_key, tuple_hash(&w->other_key));
	}
	bpf_map_delete_elem(&tracks, &w->packet.tuple);
	half_open_remove(&w->packet.tuple, w->hash);
	return 0;
}

/* Makes the other record of an established flow anew if it has been displaced. */
__noinline int track_mend(const struct track *track)
{
	struct workspace *w = workspace_get();

	if (!w || !track)
		return 0;
	tuple_reverse(&track->becomes, &w->other_key);
	if (bpf_map_lookup_elem(&tracks, &w->other_key))
		return 0;
	track_turn(&w->packet.tuple, track, &w->other_key, &w->other);
	track_admit(&w->other_key, &w->other);
	w->other.tag = tuple_hash(&w->other_key);
	if (!bpf_map_update_elem(&tracks, &w->other_key, &w->other, BPF_NOEXIST))
		tracks_made(1);
	return 0;
}

/* Whether to look for a flow's other record in a second: in each one while records may be
 * displaced. Else in one of 16, for whatever may happen to a record. */
static __always_inline int track_due(const struct track *track, __u32 now)
{
	return tracks_scarce() || !((now ^ track->tag) & 15);
}

/* How far a sequence number may be from the last one that is known: more than most
 * connections have on the way, and one of a thousand that are guessed. */
#define TCP_WINDOW (1u << 22)

/* Whether a packet goes on near where a flow of which one side is seen has got to. */
static __always_inline int track_near(const struct packet *p, const struct track *track)
{
	return !track->next || p->sequence - track->next + TCP_WINDOW < 2 * TCP_WINDOW;
}

/* Whether a FIN or RST is of one who sees the connection: the other side would not take
 * it elsewhere (RFC 5961 section 3.2). Of a flow of which one side is seen it is near what
 * that has sent. Believed where nothing is known. */
static __always_inline int track_believes(const struct packet *p, const struct track *track,
					  const struct track *other)
{
	if (track->dsr && p->tuple.protocol == IPPROTO_TCP && track->next)
		return track_near(p, track);
	return p->tuple.protocol != IPPROTO_TCP || !other || !other->acked ||
	       p->sequence - other->acked < TCP_WINDOW;
}

/* A RST, or the FIN of one side: both records tell. SCTP's SHUTDOWN of one side is
 * answered with SHUTDOWN ACK by the other, as FIN is with FIN. */
__noinline int track_close(struct track *track)
{
	struct workspace *w = workspace_get();
	struct track *other;
	__u8 state;

	if (!w || !track)
		return 0;
	state = w->packet.tcp_flags & TCP_RST ? TRACK_CLOSED : TRACK_CLOSING;
	other = track_other(w, track);
	if (!track_believes(&w->packet, track, other))
		return 0;
	if (w->packet.tcp_flags & TCP_FIN)
		track->flags |= TRACK_FIN;
	if (other && track->flags & other->flags & TRACK_FIN)
		state = TRACK_CLOSED;
	if (track->state < state)
		track->state = state;
	if (other && other->state < state)
		other->state = state;
	return 0;
}

static __always_inline void track_explain(const struct track *track)
{
	struct explanation *e = explanation_get();

	if (!e)
		return;
	e->known = 1;
	e->state = track->state;
	e->flags = track->flags;
	e->backend = track->backend;
}

/* The same where the backend's answers go another way: the client sends what follows the
 * packet before, or more than one packet. */
static __always_inline int track_goes_on(const struct packet *p, const struct track *track)
{
	if (p->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	return p->tuple.protocol != IPPROTO_TCP ||
	       (track->state != TRACK_CLOSED && p->tcp_flags & TCP_ACK &&
		p->sequence == track->next);
}

/* Whether a packet shows that both sides of its flow have been heard: the backend
 * answers, or the client goes on after the answer to its SYN. A TCP client does so with
 * what only he knows who has got that answer. */
__noinline int track_heard(const struct track *track)
{
	struct workspace *w = workspace_get();
	const struct track *other;
	const struct packet *p;

	if (!w || !track)
		return 0;
	p = &w->packet;
	if (track->dsr)
		return track_goes_on(p, track);
	if (track->flags & TRACK_REPLY)
		return p->tuple.protocol == IPPROTO_UDP;
	if (p->tuple.protocol == IPPROTO_UDP || p->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	if (p->tuple.protocol != IPPROTO_TCP)
		return 1;
	other = track_other(w, track);
	return track->state != TRACK_CLOSED && p->tcp_flags & TCP_ACK && other && other->next &&
	       other->next - p->acknowledged < TCP_WINDOW;
}

/* The client's packets may begin to come by another device; so do the answers leave. */
__noinline int track_move(struct track *track, __u32 device)
{
	struct workspace *w = workspace_get();
	struct track *other;

	if (!w || !track)
		return 0;
	other = track_other(w, track);
	track->device = device;
	if (other)
		other->device = device;
	return 0;
}

/* What a packet tells of its flow. Written only where it changes something. */
static __always_inline void track_note(struct workspace *w, struct track *track, int half)
{
	const struct packet *p = &w->packet;
	__u32 now = second_of(w);
	int heard;

	w->service = track->service;
	if (dry_run) {
		track_explain(track);
		return;
	}
	if (track->last_seen != now) {
		track->last_seen = now;
		if (!half && !track->dsr && track_due(track, now))
			track_mend(track);
	}
	track->packets++;
	track->bytes += p->length;
	if (p->tcp_flags & (TCP_FIN | TCP_RST))
		track_close(track);
	heard = half && track_heard(track);
	track_sequence(p, track, half);
	if (heard)
		track_promote(track);
}
