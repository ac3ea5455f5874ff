/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a packet tells of its flow: that it is answered, assured, closing, or comes by another
 * device; and whether to believe it. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack_table.h"
#include "packet.h"
#include "select.h"
#include "track.h"
#include "workspace.h"

/* UDP: what goes on after so many seconds, in both directions, is no one-shot
 * (nf_conntrack_proto_udp.c, Linux 4.20, has the same time). */
#define UDP_ASSURED_AFTER 2

/* Whether to look after a flow's marks, once in a second: of an assured one when a packet is the
 * first in MARK_SECONDS. */
static __always_inline int track_due(__u32 before, __u32 now, int half)
{
	return half || (before ^ now) / MARK_SECONDS;
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
	if (track->state >= state)
		return 0;
	track->state = state;
	if (other && other->state < state)
		other->state = state;
	track_refresh(track);
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

/* Notes that the backend has answered. */
__noinline int track_answer(struct track *track)
{
	struct workspace *w = workspace_get();
	struct track *other;

	if (!w || !track)
		return 0;
	other = track_other(w, track);
	track->state = TRACK_ANSWERED;
	if (other && other->state == TRACK_NEW)
		other->state = TRACK_ANSWERED;
	return 0;
}

/* Whether a client goes on as one does who has had an answer, where the backend's answers go
 * another way: with the very next sequence number, or with a datagram some time later. */
static __always_inline int track_goes_on(const struct packet *p, const struct track *track)
{
	if (p->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	if (p->tuple.protocol == IPPROTO_UDP)
		return (track->flags & TRACK_LATER) != 0;
	return p->tuple.protocol != IPPROTO_TCP ||
	       (track->state != TRACK_CLOSED && p->tcp_flags & TCP_ACK &&
		p->sequence == track->next);
}

/* Whether a packet shows that its flow is assured. Of UDP both sides go on after a time. A TCP
 * client goes on after the answer to its SYN with what only he knows who has got that answer. */
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
	if (p->tuple.protocol == IPPROTO_UDP) {
		if (!(track->flags & TRACK_LATER))
			return 0;
		other = track_other(w, track);
		return other && other->flags & TRACK_LATER;
	}
	if (track->flags & TRACK_REPLY || p->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	if (p->tuple.protocol != IPPROTO_TCP)
		return track->state == TRACK_ANSWERED;
	other = track_other(w, track);
	return track->state != TRACK_CLOSED && p->tcp_flags & TCP_ACK && other && other->next &&
	       other->next - p->acknowledged < TCP_WINDOW;
}

/* How far the answer to a SYN may be behind what came with that (RFC 7413). */
#define SYN_DATA_MAX 0xffff

/* Whether a packet of a backend of this node answers the client's packets through the Service.
 * Nobody sees the packets that a client and a pod exchange by themselves; a SYN that somebody has
 * forged with their ends must not have the pod's answers renamed. Until a backend has answered with
 * what follows from the client's packet it has not. Not static: the verifier looks at it once. */
__noinline int track_answers(const struct track *track)
{
	struct workspace *w = workspace_get();
	const struct track *other;
	const struct packet *p;

	if (!w || !track)
		return 0;
	p = &w->packet;
	if (p->tuple.protocol != IPPROTO_TCP || track->state != TRACK_NEW ||
	    p->fragment == FRAGMENT_LATER)
		return 1;
	other = track_other(w, track);
	if (!other || !other->next)
		return 0;
	if (p->tcp_flags & TCP_SYN)
		return p->tcp_flags & TCP_ACK && other->next - p->acknowledged <= SYN_DATA_MAX;
	if (p->tcp_flags & TCP_RST && p->tcp_flags & TCP_ACK && !p->sequence)
		return other->next - p->acknowledged <= SYN_DATA_MAX;
	/* A connection whose entries were lost goes on: both sides are where the client has them.
	 */
	return other->acked && p->sequence - other->acked + TCP_WINDOW < 2 * TCP_WINDOW &&
	       (!(p->tcp_flags & TCP_ACK) ||
		p->acknowledged - other->next + TCP_WINDOW < 2 * TCP_WINDOW);
}

/* The client's packets may begin to come by another device; so do the answers leave. Of TCP only a
 * segment says so that its other side would take. */
__noinline int track_move(struct track *track, __u32 device)
{
	struct workspace *w = workspace_get();
	struct track *other;

	if (!w || !track)
		return 0;
	other = track_other(w, track);
	if (!track_believes(&w->packet, track, other))
		return 0;
	track->device = device;
	if (other)
		other->device = device;
	return 0;
}

/* What a packet tells of its flow. Written only where it changes something. */
static __always_inline void track_note(struct workspace *w, struct track *track, int half)
{
	const struct packet *p = &w->packet;
	__u32 now = second_of(w), before = track->last_seen;
	int assured;

	w->service = track->service;
	if (dry_run) {
		track_explain(track);
		return;
	}
	if (before != now) {
		track->last_seen = now;
		if (track_due(before, now, half))
			track_refresh(track);
	}
	track->packets++;
	track->bytes += p->length;
	if (p->tcp_flags & (TCP_FIN | TCP_RST))
		track_close(track);
	if (!half) {
		track_sequence(p, track, 0);
		return;
	}
	if (p->tuple.protocol == IPPROTO_UDP && now - track->next >= UDP_ASSURED_AFTER)
		track->flags |= TRACK_LATER;
	if (track->flags & TRACK_REPLY && track->state == TRACK_NEW)
		track_answer(track);
	assured = track_heard(track);
	track_sequence(p, track, 1);
	if (assured)
		track_promote(track);
}
