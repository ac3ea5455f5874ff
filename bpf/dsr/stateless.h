/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that need no conntrack entry (just enough tracking, JET): from clients outside the
 * cluster to a frontend with FRONTEND_UNTRACKED, while their slot of its table is not contested.
 * Every packet of such a slot goes to the slot's backend, and always has.
 * docs/develop/just-enough-tracking.md defines contested slots; internal/tables/jet finds them. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "conntrack/update.h"
#include "dsr/forward.h"
#include "filter/source_class.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/jet.h"
#include "lb/maps.h"
#include "lb/members.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "state/counters.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* Recently looked-up frontend rows, valid until the index changes. */
#define FRONTEND_CACHE_ENTRIES 64

struct frontend_cached {
	__u32 row; /* 0: none */
	__u32 epoch;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FRONTEND_CACHE_ENTRIES);
	__type(key, __u32);
	__type(value, struct frontend_cached);
} frontend_cache SEC(".maps");

/* Hash of a destination. The agent computes the same (bpf.UntrackedEnds). */
static __always_inline __u32 endpoint_hash(const struct address *a, __be16 port)
{
	const __u32 *w = address_words_const(a);

	return ((w[0] ^ w[1] ^ w[2] ^ w[3]) + port) * 0x9e3779b1;
}

/* Returns whether a packet may be for an untracked frontend. */
static __always_inline int may_be_untracked(const struct packet *p)
{
	__u32 zero = 0, hash = endpoint_hash(&p->tuple.destination, p->tuple.destination_port);
	const struct untracked_filter *ends = bpf_map_lookup_elem(&untracked_frontends, &zero);

	return ends && ends->bits[hash >> 29] >> (hash >> 23 & 63) & 1;
}

/* frontend_at with a cache. A row is reused only after the index has changed, then `epoch`, and
 * then all programs that were running have ended. */
static __always_inline struct frontend *frontend_cached(const struct frontend_key *key)
{
	__u32 zero = 0, place = endpoint_hash(&key->address, key->port) % FRONTEND_CACHE_ENTRIES,
	      epoch, number;
	const struct untracked_filter *ends = bpf_map_lookup_elem(&untracked_frontends, &zero);
	struct frontend_cached *cached = bpf_map_lookup_elem(&frontend_cache, &place);
	struct frontend *row;

	if (!ends || !cached)
		return 0;
	epoch = *(const volatile __u32 *)&ends->epoch;
	if (cached->row && cached->epoch == epoch) {
		number = cached->row;
		row = bpf_map_lookup_elem(&frontend_rows, &number);
		if (row && frontend_key_equal(&row->key, key))
			return row;
	}
	row = frontend_numbered(key, &number);
	if (row && !dry_run) {
		cached->row = number;
		cached->epoch = epoch;
	}
	return row;
}

/* Returns whether a packet needs an entry although its frontend is untracked. UDP flows that
 * already have an entry keep using it, and no others are created: their Service's annotation
 * accepts that they change backends. */
static __always_inline int needs_conntrack(const struct scratch *w, const struct frontend *frontend,
					   __u32 hash)
{
	int unreplied;

	if (!jet_contested(frontend, hash))
		return 0;
	return w->packet.tuple.protocol != IPPROTO_UDP ||
	       ct_lookup(&w->packet.tuple, hash, &unreplied);
}

/* Returns the ID of the backend of a packet that needs no entry; 0: it may need one, or is not for
 * a backend on another node. */
static __always_inline __u32 untracked_backend(const struct scratch *w,
					       const struct frontend *frontend, __u32 hash)
{
	const struct decision *decision = &frontend->decisions[FROM_OUTSIDE];
	const struct tuple *asked = &w->packet.tuple;
	struct backend *backend;
	__u32 id;

	if (!(frontend->flags & FRONTEND_UNTRACKED) || !decision->count ||
	    needs_conntrack(w, frontend, hash))
		return 0;
	id = slot_choice(decision, hash);
	backend = backend_lookup(id);
	if (!backend || backend->local ||
	    (asked->protocol == IPPROTO_SCTP && backend->port != asked->destination_port) ||
	    (frontend->source_set && !source_admitted(frontend->source_set, &asked->source)) ||
	    address_is_no_source(&asked->source) || address_is_link_local(&asked->source) ||
	    !dsr_of(frontend->dsr, backend, class_of(&asked->source), &asked->source))
		return 0;
	return id;
}

/* Returns whether the node's own flows may use the address and port of a frontend, too. */
static __always_inline int shares_port(const struct frontend *frontend)
{
	return frontend->kind == FRONTEND_NODE_PORT || frontend->kind == FRONTEND_HOST_PORT;
}

/* Counts packets without entries; those with SYN also as events. */
static __always_inline void untracked_count(struct context *ctx, struct scratch *w)
{
	if (dry_run)
		return;
	if (w->packet.tcp_flags & TCP_SYN)
		emit_event(ctx, w, EDGE_UNTRACKED);
	count_untracked(w->in.service, w->packet.length);
}

/* Returns the ID of the backend of a packet that needs no entry, or 0; sets w->encap.dsr. Gets the
 * scratch area itself, because before Linux 6.2 a function argument cannot be a map key. Global
 * function: the verifier checks it once. */
__noinline __u32 untracked_select(__u32 hash)
{
	struct scratch *w = scratch_get();
	struct frontend_key key = {};
	struct frontend *frontend;

	if (!w)
		return 0;
	key.address = w->packet.tuple.destination;
	key.port = w->packet.tuple.destination_port;
	key.protocol = w->packet.tuple.protocol;
	frontend = frontend_cached(&key);
	w->ct.entry.lb.backend = frontend ? untracked_backend(w, frontend, hash) : 0;
	if (!frontend || !w->ct.entry.lb.backend)
		return 0;
	w->in.service = frontend->service;
	w->in.node_port = shares_port(frontend);
	w->encap.dsr = frontend->dsr;
	if (dry_run)
		explain_choice(frontend, FROM_OUTSIDE);
	return w->ct.entry.lb.backend;
}

/* Sends a packet to the backend of its slot. There is no entry to delete when an XFRM policy comes,
 * so each packet asks. */
static __always_inline enum action forward_untracked(struct context *ctx, struct scratch *w,
						     const struct backend *backend)
{
	enum action action;

	dsr_to(w, w->encap.dsr, &backend->address, backend->port);
	action = dsr_route_or_reply(ctx, w, &backend->node, 1);
	if (action != ACTION_CONTINUE)
		return action;
	if (xfrm_concerns(&w->packet.tuple) || xfrm_concerns(&w->out.to) || xfrm_concerns_outer(w))
		return drop(ctx, EDGE_DROP_XFRM);
	untracked_count(ctx, w);
	return dsr_send(ctx, w, EDGE_UNTRACKED);
}

/* Returns the ID of the backend of a connection without an entry, if a forged SYN has created an
 * entry for its tuple: the packet's sequence number does not follow that SYN. Known only for
 * contested slots. 0: the entry is the packet's. Sets w->encap.dsr. Global function: the verifier
 * checks it once. */
__noinline __u32 forged_syn(struct scratch *w, const struct ct_entry *unreplied)
{
	const struct packet *p = w ? &w->packet : 0;
	struct frontend_key key = {};
	struct frontend *frontend;
	struct backend *stable;
	__u32 dsr = 0, id;

	if (!w || !unreplied || unreplied->flags & (CT_REPLY | CT_OUTBOUND) ||
	    p->tuple.protocol != IPPROTO_TCP || p->tcp_flags & TCP_SYN ||
	    p->fragment == FRAGMENT_LATER || seq_near(p, unreplied))
		return 0;
	key.address = p->tuple.destination;
	key.port = p->tuple.destination_port;
	key.protocol = IPPROTO_TCP;
	frontend = frontend_at(&key);
	id = frontend ? jet_backend(frontend, IPPROTO_TCP, w->in.hash, &dsr) : 0;
	/* With SNAT the same backend has the connection on another port. */
	if (id == unreplied->lb.backend && unreplied->dsr)
		return 0;
	stable = id ? backend_lookup(id) : 0;
	dsr = stable ? dsr_of(dsr, stable, class_of(&p->tuple.source), &p->tuple.source) : DSR_NONE;
	if (!frontend || !dsr)
		return 0;
	w->encap.dsr = dsr;
	w->in.node_port = shares_port(frontend);
	w->in.service = frontend->service;
	w->ct.entry.lb.backend = id;
	return id;
}
