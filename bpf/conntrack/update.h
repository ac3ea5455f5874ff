/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Updates a flow by its packets (replied, assured, closing, another device), and validates such
 * packets. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/table.h"
#include "conntrack/types.h"
#include "lb/maps.h"
#include "packet/packet.h"
#include "state/counters.h"
#include "state/scratch.h"
#include "state/types.h"

/* UDP: a flow that continues after this many seconds, in both directions, is a stream (the same as
 * in nf_conntrack_proto_udp.c since Linux 4.20). */
#define UDP_STREAM_AFTER 2

/* Returns whether the eviction data of a flow is due for an update: at most once a second, for an
 * assured flow once in MARK_SECONDS. */
static __always_inline int ct_refresh_due(__u32 before, __u32 now, int unreplied)
{
	return unreplied || (before ^ now) / MARK_SECONDS;
}

/* How far a sequence number may be from the last known one if nothing else is known: more than most
 * connections have in flight, and about one in five hundred random numbers. */
#define TCP_WINDOW (1u << 22)
/* How far both numbers of a segment may be from those of the segment before: more than is lost at
 * once on the way to this node. */
#define TCP_STEP   (1u << 20)

/* Returns whether a packet's sequence number is near the next one of its side. */
static __always_inline int seq_near(const struct packet *p, const struct ct_entry *ct)
{
	return !ct->next || p->sequence - ct->next + TCP_WINDOW < 2 * TCP_WINDOW;
}

/* Returns whether the sender of a TCP segment sees the connection: both numbers are near those that
 * its side had before, or the sequence number is the next one. A guess has a chance of 1 to 2^22.
 * Also true if they are not known. */
static __always_inline int seq_follows(const struct packet *p, const struct ct_entry *ct)
{
	if (!ct->follows || !ct->next || !ct->acked || p->sequence == ct->next)
		return 1;
	return p->tcp_flags & TCP_ACK && p->sequence - ct->next + TCP_STEP < 2 * TCP_STEP &&
	       p->acknowledged - ct->acked + TCP_STEP < 2 * TCP_STEP;
}

/* How far the number of a RST may be behind the client's next one if the backend's acknowledgments
 * are not seen (DSR). */
#define RST_BEHIND 0xffff

/* Returns whether a RST has the sequence number that its receiver expects (RFC 5961 section 3.2),
 * the last one that it has acknowledged or the one after all that it has been sent. If it has
 * another one, the receiver asks for a RST with the right one. Also true if neither is known. */
static __always_inline int rst_is_exact(const struct packet *p, const struct ct_entry *ct,
					const struct ct_entry *other)
{
	if (ct->dsr)
		return !ct->next || ct->next - p->sequence <= RST_BEHIND;
	return !other || !other->acked || p->sequence == other->acked ||
	       (ct->follows && p->sequence == ct->next);
}

/* Returns whether the sender of a FIN or RST sees the connection. */
static __always_inline int close_is_valid(const struct packet *p, const struct ct_entry *ct,
					  const struct ct_entry *other)
{
	if (p->tuple.protocol != IPPROTO_TCP)
		return 1;
	return p->tcp_flags & TCP_RST ? rst_is_exact(p, ct, other) : seq_follows(p, ct);
}

/* Closes a flow by a RST, or by a FIN of one side; updates both entries. One side's SHUTDOWN of
 * SCTP is answered by the other's SHUTDOWN ACK, like FIN by FIN. */
__noinline int ct_close(struct context *ctx, struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	struct ct_entry *other;
	__u8 state;

	if (!w || !ct)
		return 0;
	state = w->packet.tcp_flags & TCP_RST ? CT_CLOSED : CT_CLOSING;
	other = ct_reverse_of(w, ct);
	if (!close_is_valid(&w->packet, ct, other))
		return 0;
	/* Each side sets the flag in its own entry. If both do so at once on two CPUs, neither may
	 * see the other's flag: the flow then stays CT_CLOSING, which expires, and is evicted
	 * before open flows. The same holds if ct_assure copies the entry meanwhile, and if
	 * ct_set_port_taken writes the flags of an entry that was never replied to, which the next
	 * reply repeats. */
	if (w->packet.tcp_flags & TCP_FIN)
		ct->flags |= CT_FIN;
	if (other && ct->flags & other->flags & CT_FIN)
		state = CT_CLOSED;
	if (ct->state >= state)
		return 0;
	ct->state = state;
	if (other && other->state < state)
		other->state = state;
	ct_refresh(ctx, ct);
	return 0;
}

static __always_inline void ct_explain(const struct ct_entry *ct)
{
	struct explanation *e = explanation_get();

	if (!e)
		return;
	e->known = 1;
	e->state = ct->state;
	e->flags = ct->flags;
	e->backend = ct->lb.backend;
}

/* Notes that the backend has replied. */
__noinline int ct_set_replied(struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	struct ct_entry *other;

	if (!w || !ct)
		return 0;
	other = ct_reverse_of(w, ct);
	ct->state = CT_REPLIED;
	if (other && other->state == CT_NEW)
		other->state = CT_REPLIED;
	return 0;
}

/* Returns whether a client continues as after a reply, if replies do not pass this node: with the
 * next sequence number, or with a datagram some time later. */
static __always_inline int ct_client_goes_on(const struct packet *p, const struct ct_entry *ct)
{
	if (p->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	if (p->tuple.protocol == IPPROTO_UDP)
		return (ct->flags & CT_STREAM) != 0;
	return p->tuple.protocol != IPPROTO_TCP ||
	       (ct->state != CT_CLOSED && p->tcp_flags & TCP_ACK && p->sequence == ct->next);
}

/* Returns whether a packet shows that its flow is assured. UDP: both sides continue after some
 * time. TCP: the client acknowledges the reply to its SYN, which only a client that has received it
 * can. */
__noinline int ct_is_assured(const struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	const struct ct_entry *other;
	const struct packet *p;

	if (!w || !ct)
		return 0;
	p = &w->packet;
	if (ct->dsr)
		return ct_client_goes_on(p, ct);
	if (p->tuple.protocol == IPPROTO_UDP) {
		if (!(ct->flags & CT_STREAM))
			return 0;
		other = ct_reverse_of(w, ct);
		return other && other->flags & CT_STREAM;
	}
	if (ct->flags & CT_REPLY || p->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	if (p->tuple.protocol != IPPROTO_TCP)
		return ct->state == CT_REPLIED;
	other = ct_reverse_of(w, ct);
	return ct->state != CT_CLOSED && p->tcp_flags & TCP_ACK && other && other->next &&
	       other->next - p->acknowledged < TCP_WINDOW;
}

/* By how much the reply to a SYN may be behind the data sent with the SYN (RFC 7413). */
#define SYN_DATA_MAX 0xffff

/* Returns whether a packet of a backend on this node replies to the client's packets through the
 * Service. Packets that a client and a pod exchange directly are not seen; a forged SYN with their
 * tuple must not cause the pod's replies to be translated. The backend counts as having replied
 * only when its packet acknowledges the client's. Global function: the verifier checks it once. */
__noinline int ct_reply_valid(const struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	const struct ct_entry *other;
	const struct packet *p;

	if (!w || !ct)
		return 0;
	p = &w->packet;
	if (p->tuple.protocol != IPPROTO_TCP || ct->state != CT_NEW ||
	    p->fragment == FRAGMENT_LATER)
		return 1;
	other = ct_reverse_of(w, ct);
	if (!other || !other->next)
		return 0;
	if (p->tcp_flags & TCP_SYN)
		return p->tcp_flags & TCP_ACK && other->next - p->acknowledged <= SYN_DATA_MAX;
	if (p->tcp_flags & TCP_RST && p->tcp_flags & TCP_ACK && !p->sequence)
		return other->next - p->acknowledged <= SYN_DATA_MAX;
	/* A connection that has lost its entries continues: both sequence numbers match the
	 * client's. */
	return other->acked && p->sequence - other->acked + TCP_WINDOW < 2 * TCP_WINDOW &&
	       (!(p->tcp_flags & TCP_ACK) ||
		p->acknowledged - other->next + TCP_WINDOW < 2 * TCP_WINDOW);
}

/* Notes that a backend on this node did not reply to the client's SYN, but sent a packet of another
 * connection from the client's port: a direct one, or one that the Service's flow has ended and the
 * backend's stack has not (RFC 9293 section 3.5.1: it acknowledges what it has received, and does
 * not accept the SYN). Returns whether the packet is such an acknowledgment of the SYN: the client
 * has asked a Service, and must not get it from the backend's address. All others pass unchanged,
 * because a SYN can be forged, and the client may have a direct connection: of that a forged SYN
 * costs one acknowledgment without data. */
__noinline int ct_set_port_taken(const struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	struct ct_entry *other;
	int first;

	if (!w || !ct || !(w->packet.tcp_flags & TCP_ACK) || w->packet.tcp_flags & TCP_RST)
		return 0;
	other = ct_reverse_of(w, ct);
	if (!other || other->state != CT_NEW || other->acked) /* it did not begin with a SYN */
		return 0;
	first = !(other->flags & CT_PORT_TAKEN);
	if (!dry_run)
		other->flags |= CT_PORT_TAKEN;
	return first && !w->packet.payload && !(w->packet.tcp_flags & TCP_FIN);
}

/* Returns whether a packet may change the device by which the client's packets arrive and replies
 * leave. After a SYN alone only that SYN again, and what follows it. */
static __always_inline int ct_may_move(const struct packet *p, const struct ct_entry *ct)
{
	if (p->tuple.protocol != IPPROTO_TCP)
		return 1;
	if (ct->follows && ct->next && !ct->acked)
		return tcp_next(p) == ct->next || p->sequence == ct->next;
	return seq_follows(p, ct);
}

/* Changes the device of a flow. A packet that may not is not the client's. */
__noinline int ct_set_device(struct ct_entry *ct, __u32 device)
{
	struct scratch *w = scratch_get();
	struct ct_entry *other;

	if (!w || !ct)
		return 0;
	if (!ct_may_move(&w->packet, ct)) {
		w->in.may_be_forged = 1;
		return 0;
	}
	other = ct_reverse_of(w, ct);
	ct->device = device;
	if (other)
		other->device = device;
	return 0;
}

/* Updates a flow by a packet. Writes only what changes. */
static __always_inline void ct_update(struct context *ctx, struct scratch *w, struct ct_entry *ct,
				      int unreplied)
{
	const struct packet *p = &w->packet;
	__u32 now = w->clock.second, before = ct->last_seen;
	int assured;

	w->in.service = ct->lb.service;
	if (dry_run) {
		ct_explain(ct);
		return;
	}
	if (before != now) {
		ct->last_seen = now;
		if (ct_refresh_due(before, now, unreplied))
			ct_refresh(ctx, ct);
	}
	/* Two CPUs may handle packets of one direction at once, if the network card spreads a flow
	 * or several threads send by one socket. Then one of two additions may be lost: nothing but
	 * statistics reads these, and an atomic addition would cost each packet more. */
	ct->packets++;
	ct->bytes += p->length;
	if (p->tcp_flags & (TCP_FIN | TCP_RST))
		ct_close(ctx, ct);
	if (!unreplied) {
		if (!(p->tcp_flags & (TCP_SYN | TCP_RST)) && seq_follows(p, ct))
			ct_note_sequence(p, ct);
		return;
	}
	if (p->tuple.protocol == IPPROTO_UDP && now - ct->next >= UDP_STREAM_AFTER)
		ct->flags |= CT_STREAM;
	if (ct->flags & CT_REPLY && ct->state == CT_NEW)
		ct_set_replied(ct);
	assured = ct_is_assured(ct);
	if (!w->in.may_be_forged)
		ct_note_sequence(p, ct);
	if (assured)
		ct_assure(ctx, ct);
}
