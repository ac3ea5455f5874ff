/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that need no record of their flow (just enough tracking): those of clients outside
 * for a frontend with FRONTEND_UNTRACKED, while their slot of its table is not contested. Every
 * packet of such a slot goes to the slot's backend, and always has. docs/architecture.md says
 * when a slot is contested; internal/history decides it. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "direct.h"
#include "frontend.h"
#include "past.h"
#include "select.h"
#include "tell.h"
#include "track.h"
#include "track_note.h"
#include "workspace.h"

/* The rows that the index led to last. They are believed until the index is turned. */
#define FRONTS 64

struct front {
	__u32 row; /* 0: none */
	__u32 turned;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FRONTS);
	__type(key, __u32);
	__type(value, struct front);
} fronts SEC(".maps");

/* Of where packets go to. The agent does the same (datapath.UntrackedEnds). */
static __always_inline __u32 end_hash(const struct address *a, __be16 port)
{
	const __u32 *w = address_words_const(a);

	return ((w[0] ^ w[1] ^ w[2] ^ w[3]) + port) * 0x9e3779b1;
}

/* Whether a packet may be for an untracked frontend. */
static __always_inline int some_untracked(const struct packet *p)
{
	__u32 zero = 0, hash = end_hash(&p->tuple.destination, p->tuple.destination_port);
	const struct untracked_ends *ends = bpf_map_lookup_elem(&untracked_frontends, &zero);

	return ends && ends->bits[hash >> 29] >> (hash >> 23 & 63) & 1;
}

/* frontend_at, for one that is asked for again and again. A row is used for something else
 * only after the index has been turned, `turned` has changed, and then all programs have ended. */
static __always_inline struct frontend *frontend_remembered(const struct frontend_key *key)
{
	__u32 zero = 0, place = end_hash(&key->address, key->port) % FRONTS, turned, number;
	const struct untracked_ends *ends = bpf_map_lookup_elem(&untracked_frontends, &zero);
	struct front *front = bpf_map_lookup_elem(&fronts, &place);
	struct frontend *row;

	if (!ends || !front)
		return 0;
	turned = *(const volatile __u32 *)&ends->turned;
	if (front->row && front->turned == turned) {
		number = front->row;
		row = bpf_map_lookup_elem(&frontend_rows, &number);
		if (row && frontend_key_equal(&row->key, key))
			return row;
	}
	row = frontend_numbered(key, &number);
	if (row && !dry_run) {
		front->row = number;
		front->turned = turned;
	}
	return row;
}

/* Whether a packet needs a record after all. Of UDP there is nothing to keep together (its
 * Service is annotated so): what flows have records from before goes by these, and no flow
 * gets another one. */
static __always_inline int needs_record(const struct workspace *w, const struct frontend *frontend,
					__u32 hash)
{
	int half;

	if (!past_contested(frontend, hash))
		return 0;
	return w->packet.tuple.protocol != IPPROTO_UDP || track_find(&w->packet.tuple, hash, &half);
}

/* The id of the backend of a packet that needs no record; 0: it may need one, or meet something
 * else than a backend of another node. */
static __always_inline __u32 untracked_backend(const struct workspace *w,
					       const struct frontend *frontend, __u32 hash)
{
	const struct decision *decision = &frontend->decisions[FROM_OUTSIDE];
	const struct tuple *asked = &w->packet.tuple;
	struct backend *backend;
	__u32 id;

	if (!(frontend->flags & FRONTEND_UNTRACKED) || !decision->count ||
	    needs_record(w, frontend, hash))
		return 0;
	id = slot_backend(decision->first + chosen_slot(decision, hash));
	backend = backend_lookup(id);
	if (!backend || backend->local ||
	    (asked->protocol == IPPROTO_SCTP && backend->port != asked->destination_port) ||
	    (frontend->source_set && !source_admitted(frontend->source_set, &asked->source)) ||
	    address_is_no_source(&asked->source) ||
	    !dsr_of(frontend->dsr, backend, class_of(&asked->source), &asked->source))
		return 0;
	return id;
}

/* What is known of flows without records: how much they send, and when they begin. */
static __always_inline void untracked_count(struct context *ctx, struct workspace *w)
{
	if (dry_run)
		return;
	if (w->packet.tcp_flags & TCP_SYN)
		tell(ctx, w, EDGE_UNTRACKED);
	count_sent(w->service, w->packet.length);
}

/* The id of the backend of a packet of a hash that needs no record, or 0; w->dsr is the way there.
 * Not static: the verifier looks at it once. It looks for the workspace itself, since until Linux
 * 6.2 no argument can be a map's key. */
__noinline __u32 untracked(__u32 hash)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	struct frontend_key key = {};
	struct frontend *frontend;

	if (!w)
		return 0;
	key.address = w->packet.tuple.destination;
	key.port = w->packet.tuple.destination_port;
	key.protocol = w->packet.tuple.protocol;
	frontend = frontend_remembered(&key);
	w->track.backend = frontend ? untracked_backend(w, frontend, hash) : 0;
	if (!frontend || !w->track.backend)
		return 0;
	w->service = frontend->service;
	w->dsr = frontend->dsr;
	if (dry_run)
		explain_choice(frontend, FROM_OUTSIDE);
	return w->track.backend;
}

static __always_inline int send_untracked(struct context *ctx, struct workspace *w,
					  const struct backend *backend)
{
	dsr_to(w, w->dsr, &backend->address, backend->port);
	if (dsr_way(ctx, w, &backend->node, 1))
		return w->result;
	untracked_count(ctx, w);
	return dsr_send(ctx, w, EDGE_UNTRACKED);
}

/* The backend of a connection of which there is no record but that of a SYN which somebody has
 * forged with its ends: the packet does not go on near that. Only of a contested slot is it known
 * which one that is. 0: the record is the packet's. Of the backend w->dsr is the way there.
 * Not static: the verifier looks at it once. */
__noinline __u32 pretended(struct workspace *w, const struct track *half_open)
{
	const struct packet *p = w ? &w->packet : 0;
	struct frontend_key key = {};
	struct frontend *frontend;
	struct backend *stable;
	__u32 dsr = 0, id;

	if (!w || !half_open || half_open->flags & (TRACK_REPLY | TRACK_OUTBOUND) ||
	    p->tuple.protocol != IPPROTO_TCP || p->tcp_flags & TCP_SYN ||
	    p->fragment == FRAGMENT_LATER || track_near(p, half_open))
		return 0;
	key.address = p->tuple.destination;
	key.port = p->tuple.destination_port;
	key.protocol = IPPROTO_TCP;
	frontend = frontend_at(&key);
	id = frontend ? past_backend(frontend, IPPROTO_TCP, w->hash, &dsr) : 0;
	/* The same backend by SNAT has the connection under another port. */
	if (id == half_open->backend && half_open->dsr)
		return 0;
	stable = id ? backend_lookup(id) : 0;
	dsr = stable ? dsr_of(dsr, stable, class_of(&p->tuple.source), &p->tuple.source) : DSR_NONE;
	if (!frontend || !dsr)
		return 0;
	w->dsr = dsr;
	w->service = frontend->service;
	w->track.backend = id;
	return id;
}
