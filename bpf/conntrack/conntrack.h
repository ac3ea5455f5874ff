/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Conntrack at the edge: looks up and ends the flows of packets. conntrack/create.h creates the
 * entries of a flow, conntrack/update.h updates them by its packets. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/kernel_entry.h"
#include "conntrack/table.h"
#include "conntrack/types.h"
#include "filter/prefilter.h"
#include "lb/maps.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "set_table/set_table.h"
#include "set_table/types.h"
#include "state/scratch.h"

/* Looks up the entry of a packet. Its place may be reused for another flow at any time. */
static __always_inline struct ct_entry *ct_lookup(const struct tuple *tuple, __u32 hash,
						  int *unreplied)
{
	__u32 at = ct_find(tuple, hash, CT_TABLE_ANY);

	*unreplied = (at & CT_AT_UNREPLIED) != 0; /* undefined if there is no entry */
	return ct_entry_at(at);
}

/* Copies the tuple after translation. Returns whether the entry was the packet's throughout. */
static __always_inline int ct_read(const struct ct_entry *ct, __u32 hash, struct tuple *to)
{
	*to = ct->xlate;
	barrier();
	return *(const volatile __u32 *)&ct->tag == hash;
}

/* Returns whether an entry is for replies of a backend on this node. They are translated at egress:
 * the stack would drop a packet with one of its own addresses as source. */
static __always_inline int is_local_reply(const struct ct_entry *ct)
{
	return (ct->flags & ~(CT_FIN | CT_DSR | CT_STREAM)) == (CT_REPLY | CT_LOCAL);
}

/* Adds a new entry to the prefilter. */
static __always_inline void ct_prefilter_add(const struct tuple *key, const struct ct_entry *ct)
{
	prefilter_add(key, is_local_reply(ct));
}

/* Makes the entry of the reverse direction of a flow, except for its tag. */
static __always_inline void ct_reverse(const struct tuple *key, const struct ct_entry *ct,
				       struct tuple *reverse_key, struct ct_entry *other)
{
	tuple_reverse(&ct->xlate, reverse_key);
	__builtin_memset(other, 0, sizeof(*other));
	tuple_reverse(key, &other->xlate);
	other->lb.service = ct->lb.service;
	other->lb.backend = ct->lb.backend;
	other->last_seen = ct->last_seen;
	other->device = ct->device;
	other->state = ct->state;
	if (key->protocol == IPPROTO_UDP)
		other->next = ct->next;
	other->flags = (ct->flags ^ CT_REPLY) & (CT_REPLY | CT_LOCAL | CT_OUTBOUND | CT_DSR);
}

/* Returns the entry of the reverse direction of the packet's flow, and its location; or 0. */
static __always_inline struct ct_entry *ct_reverse_find(struct scratch *w,
							const struct ct_entry *ct, __u32 *at)
{
	struct ct_entry *other;

	tuple_reverse(&ct->xlate, &w->ct.reverse_key);
	*at = ct_find(&w->ct.reverse_key, tuple_hash(&w->ct.reverse_key), CT_TABLE_ANY);
	other = ct_entry_at(*at);
	if (!other)
		return 0;
	tuple_reverse(&other->xlate, &w->ct.other.xlate);
	return tuple_equal(&w->ct.other.xlate, &w->packet.tuple) ? other : 0;
}

/* ct_reverse_find for flows that may have no such entry (DSR). */
static __always_inline struct ct_entry *ct_reverse_of(struct scratch *w, const struct ct_entry *ct)
{
	__u32 at;

	return ct->dsr ? 0 : ct_reverse_find(w, ct, &at);
}

/* Moves the packet's flow to the table of assured flows. If that has no room, the flow stays where
 * it is, and the next packet retries. Two CPUs may move a flow at once: each deletes it from
 * `unreplied` when both entries are in `conntrack`, whoever has added them. Global function, like
 * the next ones: the verifier checks it once. Each gets the scratch area itself, as ct_create does.
 */
__noinline int ct_assure(struct context *ctx, const struct ct_entry *unreplied)
{
	struct scratch *w = scratch_get();
	struct ct_entry *other;
	int stored;

	if (!w || !unreplied)
		return 0;
	w->ct.entry = *unreplied;
	barrier();
	if (*(const volatile __u32 *)&unreplied->tag != w->in.hash)
		return 0; /* the place is another flow's: another CPU has moved this one */
	if (w->ct.entry.state <= CT_REPLIED)
		w->ct.entry.state = CT_ESTABLISHED;
	ct_prefilter_add(&w->packet.tuple, &w->ct.entry);
	if (w->ct.entry.dsr) {
		if (ct_insert(&w->packet.tuple, &w->ct.entry, CT_TABLE_ASSURED, 0) == CT_INSERTED)
			ct_delete(&w->packet.tuple, w->in.hash, CT_TABLE_UNREPLIED);
		return 0;
	}
	other = ct_reverse_of(w, unreplied);
	ct_reverse(&w->packet.tuple, &w->ct.entry, &w->ct.reverse_key, &w->ct.other);
	w->ct.other.tag = tuple_hash(&w->ct.reverse_key);
	if (other) {
		w->ct.other.acked = other->acked;
		w->ct.other.next = other->next;
		w->ct.other.follows = other->follows;
		w->ct.other.flags |= other->flags & (CT_FIN | CT_STREAM);
		w->ct.other.packets = other->packets;
		w->ct.other.bytes = other->bytes;
	}
	ct_prefilter_add(&w->ct.reverse_key, &w->ct.other);
	if (ct_insert(&w->ct.reverse_key, &w->ct.other, CT_TABLE_ASSURED, 0) != CT_INSERTED)
		return 0;
	stored = ct_insert(&w->packet.tuple, &w->ct.entry, CT_TABLE_ASSURED, 0);
	if (stored == CT_INSERT_FULL)
		ct_delete(&w->ct.reverse_key, w->ct.other.tag, CT_TABLE_ASSURED);
	if (stored != CT_INSERTED)
		return 0;
	ct_delete(&w->ct.reverse_key, w->ct.other.tag, CT_TABLE_UNREPLIED);
	ct_delete(&w->packet.tuple, w->in.hash, CT_TABLE_UNREPLIED);
	kernel_entry_update(ctx, &w->ct.entry);
	return 0;
}

/* Returns the sequence number after a segment. 0 means unknown, so it is 1 instead of 0. */
static __always_inline __u32 tcp_next(const struct packet *p)
{
	__u32 next =
		p->sequence + p->payload + !!(p->tcp_flags & TCP_SYN) + !!(p->tcp_flags & TCP_FIN);

	return next ? next : 1;
}

/* Notes the TCP sequence numbers of a side. 0 means unknown, so 1 is stored for 0. */
static __always_inline void ct_note_sequence(const struct packet *p, struct ct_entry *ct)
{
	if (p->tuple.protocol != IPPROTO_TCP || p->fragment == FRAGMENT_LATER)
		return;
	if (p->tcp_flags & TCP_ACK)
		ct->acked = p->acknowledged ? p->acknowledged : 1;
	ct->next = tcp_next(p);
	ct->follows = 1;
}

/* Returns whether a packet neither opens a connection nor belongs to a known one: without an entry
 * it gets none, and no SNAT port. SCTP's chunks that end an association look the same. A flow known
 * by the history of its slot has a state and is valid. */
static __always_inline int ct_is_invalid(const struct scratch *w)
{
	const struct packet *p = &w->packet;
	__u8 flags = p->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK);

	if (p->fragment == FRAGMENT_LATER || p->tuple.protocol == IPPROTO_UDP ||
	    w->ct.entry.state != CT_NEW)
		return 0;
	if (p->tcp_flags & (TCP_FIN | TCP_RST))
		return 1;
	return p->tuple.protocol == IPPROTO_TCP && flags != TCP_SYN && flags != TCP_ACK;
}

/* Initialises the entry of a new flow. */
static __always_inline void ct_init(struct scratch *w)
{
	ct_note_sequence(&w->packet, &w->ct.entry);
	if (w->packet.tuple.protocol == IPPROTO_UDP)
		w->ct.entry.next = w->clock.second;
}

/* Inserts the entry of a new flow of which only one direction is seen (DSR). */
static __always_inline int ct_insert_one_way(struct scratch *w)
{
	if (dry_run)
		return 0;
	w->ct.entry.xlate = w->out.to;
	ct_init(w);
	ct_prefilter_add(&w->packet.tuple, &w->ct.entry);
	return ct_insert(&w->packet.tuple, &w->ct.entry, CT_TABLE_UNREPLIED, 0);
}

/* Restores the packet's entry from the entry of the reverse direction. */
static __always_inline int ct_restore(struct scratch *w, int unreplied)
{
	if (dry_run)
		return 0;
	ct_prefilter_add(&w->packet.tuple, &w->ct.entry);
	return ct_insert(&w->packet.tuple, &w->ct.entry,
			 unreplied ? CT_TABLE_UNREPLIED : CT_TABLE_ASSURED, 0);
}

/* The shortest configurable timeout, in seconds: before it no flow is checked for expiry. */
#define MIN_TIMEOUT 1

/* Returns whether a flow has been idle for longer than its timeout. Global function: the verifier
 * checks it once. */
__noinline int ct_expired(__u32 hash)
{
	struct scratch *w = scratch_get();
	const struct set_eviction *mark;
	__u32 at;

	if (!w)
		return 0;
	at = ct_find(&w->packet.tuple, hash, CT_TABLE_ANY);
	mark = ct_eviction_at(at);
	return mark && eviction_expired(mark, w->clock.tick);
}

/* Returns whether a packet asks for a new connection. A SYN with FIN, RST or ACK does not
 * (ct_is_invalid drops it), so it must not delete the entries of a flow. */
static __always_inline int tcp_opens(const struct packet *p)
{
	return (p->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}

/* Returns whether the backend has another connection from the client's port. */
static __always_inline int ct_port_is_taken(const struct ct_entry *ct)
{
	return ct->flags & CT_PORT_TAKEN && ct->state == CT_NEW;
}

/* Returns whether a packet begins another flow with the tuple of a closed or expired one, or of one
 * that the backend cannot tell from another connection. A segment from the middle of a TCP
 * connection belongs to the old flow, however long that was idle. */
static __always_inline int ct_is_reused(struct scratch *w, const struct ct_entry *ct)
{
	const struct packet *p = &w->packet;

	if (ct->flags & CT_REPLY)
		return 0;
	if (tcp_opens(p) && (ct->state >= CT_CLOSING || ct_port_is_taken(ct)))
		return 1;
	if (!tcp_opens(p) && p->tuple.protocol != IPPROTO_UDP)
		return 0;
	return w->clock.second - ct->last_seen > MIN_TIMEOUT && ct_expired(w->in.hash);
}

/* Returns whether a packet replies to a SYN that was not seen here: the client has connected to the
 * backend directly, from the port of a closed flow. Its replies must not get that flow's addresses.
 */
static __always_inline int ct_syn_unseen(const struct ct_entry *ct, const struct packet *p)
{
	return ct->flags & CT_REPLY && ct->flags & (CT_OUTBOUND | CT_LOCAL) &&
	       ct->state >= CT_CLOSING && p->tcp_flags & TCP_SYN;
}

/* Deletes the entries of a closed flow, because its tuple is used for another one. */
__noinline int ct_delete_flow(const struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	struct ct_entry *other;

	if (!w || !ct)
		return 0;
	w->in.reused = 1;
	if (dry_run)
		return 0;
	ct_account(ct);
	other = ct_reverse_of(w, ct);
	if (other) {
		ct_account(other);
		ct_delete(&w->ct.reverse_key, tuple_hash(&w->ct.reverse_key), CT_TABLE_ANY);
	}
	ct_delete(&w->packet.tuple, w->in.hash, CT_TABLE_ANY);
	return 0;
}

/* Updates the eviction data of an entry at a place, of the flow of the packet and `ct`. */
static __always_inline int ct_set_eviction(struct scratch *w, const struct ct_entry *ct, __u32 at,
					   int unreplied)
{
	struct set_eviction *mark = ct_eviction_at(at);

	if (!mark)
		return -1;
	*mark = ct_eviction_of(w, w->packet.tuple.protocol, ct, unreplied);
	return 0;
}

/* Updates the time and eviction data of both entries of the packet's flow. Restores the entry of an
 * assured flow that has lost one. */
__noinline int ct_refresh(struct context *ctx, const struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	const struct ct_entry *other;
	__u32 at, other_at;
	int unreplied;

	if (!w || !ct)
		return 0;
	at = ct_find(&w->packet.tuple, w->in.hash, CT_TABLE_ANY);
	unreplied = (at & CT_AT_UNREPLIED) != 0;
	if (ct_set_eviction(w, ct, at, unreplied) || ct->dsr)
		return 0;
	other = ct_reverse_find(w, ct, &other_at);
	if (other) {
		ct_set_eviction(w, ct, other_at, unreplied);
	} else if (!unreplied) {
		ct_reverse(&w->packet.tuple, ct, &w->ct.reverse_key, &w->ct.other);
		w->ct.other.tag = tuple_hash(&w->ct.reverse_key);
		ct_prefilter_add(&w->ct.reverse_key, &w->ct.other);
		ct_insert(&w->ct.reverse_key, &w->ct.other, CT_TABLE_ASSURED, 1);
	}
	if (!unreplied)
		kernel_entry_update(ctx, ct);
	return 0;
}
