/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Allocates the SNAT port of a new flow, to which its backend replies: searches for a free one, and
 * evicts another flow if there is none. Inserts the entry of replies with it. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/snat_ports.h"
#include "conntrack/table.h"
#include "conntrack/types.h"
#include "lb/maps.h"
#include "netfilter/known.h"
#include "packet/tuple.h"
#include "set_table/set_table.h"
#include "set_table/types.h"
#include "state/scratch.h"
#include "state/types.h"

/* How many ports are tried per flow: before another flow is evicted, if recent searches have found
 * free ports, and if they have not; and at most. */
#define SNAT_TRIES	    32
#define SNAT_TRIES_PRESSURE 8
#define SNAT_ATTEMPTS	    64

/* w->port_pressure is a moving average over PORT_PRESSURE_STEPS searches: PORT_PRESSURE_MAX if none
 * finds a free port, 0 if all do. */
#define PORT_PRESSURE_MAX   256
#define PORT_PRESSURE_STEPS 16

/* After this time a handshake has completed, unless a segment was lost. */
#define HANDSHAKE_TICKS	    SECONDS_TO_TICKS(3)

/* An assured flow is evicted only if it has been idle for this long. */
#define IDLE_TICKS	    SECONDS_TO_TICKS(10)

/* The order in which flows are evicted if all ports tried are in use; among equals the flow that
 * has been idle longest. Established TCP keeps its port until it is closed or expires. */
enum evict_order {
	EVICT_EXPIRED, /* expired */
	EVICT_STALE,   /* not assured, and no handshake in progress */
	EVICT_CLOSED,
	EVICT_UNASSURED, /* not assured */
	EVICT_CLOSING,	 /* closed by one side */
	EVICT_IDLE,	 /* assured, except TCP */
	EVICT_NEVER,
};

/* State of the search for the destination port of w->ct.reverse_key, the key of replies;
 * w->ct.other is the new entry of replies. */
struct snat_search {
	__u8 keep_port; /* the port in reverse_key is tried first */
	__u8 recovered;
	__u8 unreplied; /* the table of the recovered flow's other entry */
	__u8 found;
	__u8 recover_only; /* the packet does not begin a flow */
	__u8 sctp;	   /* the port is not translated */
	__u8 failed;	   /* a port was found, but the entry could not be inserted */
	__u8 victim;	   /* enum evict_order of the best flow to evict so far */
	__u8 exhausted;	   /* a flow was evicted */
	__u8 shared;	   /* the kernel's own flows may use the port, too */
	__be16 victim_port;
	__u32 victim_idle; /* how long the victim has been idle, in ticks */
};

/* Returns the eviction order of the flow with an entry at a location, and sets *idle in ticks. */
static __always_inline enum evict_order evict_order(struct scratch *w, const struct ct_entry *ct,
						    __u32 at, __u32 *idle)
{
	__u8 protocol = w->packet.tuple.protocol;
	const struct set_eviction *mark = ct_eviction_at(at);
	__u32 now = w->clock.tick;

	*idle = 0;
	if (!mark)
		return EVICT_NEVER;
	*idle = now + ct_timeout(protocol, ct) - mark->expires;
	if ((__s32)*idle < 0)
		*idle = 0;
	if (eviction_expired(mark, now))
		return EVICT_EXPIRED;
	if (ct->state == CT_CLOSED)
		return EVICT_CLOSED;
	if (at & CT_AT_UNREPLIED)
		return *idle >= HANDSHAKE_TICKS ? EVICT_STALE : EVICT_UNASSURED;
	if (*idle < IDLE_TICKS)
		return EVICT_NEVER;
	if (ct->state == CT_CLOSING)
		return EVICT_CLOSING;
	return protocol == IPPROTO_UDP ? EVICT_IDLE : EVICT_NEVER;
}

/* Evicts the flow that holds a port. */
static __always_inline void port_evict_holder(struct scratch *w, const struct ct_entry *holder)
{
	if (dry_run)
		return;
	w->ct.victim.key = w->ct.reverse_key;
	tuple_reverse(&holder->xlate, &w->ct.victim.other);
	ct_account(holder);
	ct_delete(&w->ct.reverse_key, w->ct.other.tag, CT_TABLE_ANY);
	ct_evict_reverse();
}

/* Inserts the entry of replies with a free port. Returns whether the search is over. */
static __always_inline int port_claim(struct context *ctx, struct snat_search *search,
				      struct scratch *w)
{
	enum ct_inserted stored = CT_INSERTED;

	if (search->shared && kernel_has_port(ctx, &w->ct.reverse_key))
		return 0;
	if (!dry_run) {
		ct_prefilter_add(&w->ct.reverse_key, &w->ct.other);
		stored = ct_insert(&w->ct.reverse_key, &w->ct.other, CT_TABLE_UNREPLIED, 1);
		/* Another CPU has the port, or is about to: that may take long on a virtual CPU. */
		if (stored == CT_EXISTS || stored == CT_INSERT_FAILED)
			return 0;
		search->failed = stored != CT_INSERTED;
	}
	search->found = 1;
	return 1;
}

/* Tries the port in reverse_key. If the same flow holds it and has lost its other entry, recovers
 * the flow. */
static __always_inline int port_try(struct context *ctx, struct snat_search *search,
				    struct scratch *w)
{
	enum evict_order order;
	struct ct_entry *holder;
	__u32 at, idle;

	w->ct.other.tag = tuple_hash(&w->ct.reverse_key);
	at = ct_find(&w->ct.reverse_key, w->ct.other.tag, CT_TABLE_ANY);
	holder = ct_entry_at(at);
	if (!holder)
		return search->recover_only ? 0 : port_claim(ctx, search, w);
	tuple_reverse(&holder->xlate, &w->out.to);
	if (tuple_equal(&w->out.to, &w->packet.tuple)) {
		/* A dry run deletes nothing, so a closed flow still has its entries. */
		if (!dry_run || holder->state < CT_CLOSING) {
			w->ct.entry.state = holder->state;
			search->unreplied = (at & CT_AT_UNREPLIED) != 0;
			search->recovered = 1;
		}
		search->found = 1;
		return 1;
	}
	if (search->recover_only)
		return 0;
	order = evict_order(w, holder, at, &idle);
	if (order == EVICT_EXPIRED) {
		port_evict_holder(w, holder);
		return port_claim(ctx, search, w);
	}
	if (order < search->victim || (order == search->victim && idle > search->victim_idle)) {
		search->victim = order;
		search->victim_idle = idle;
		search->victim_port = w->ct.reverse_key.destination_port;
	}
	return 0;
}

/* Evicts the best candidate and takes its port. */
static __always_inline int port_evict(struct context *ctx, struct snat_search *search,
				      struct scratch *w)
{
	struct ct_entry *holder;
	__u32 at;

	w->ct.reverse_key.destination_port = search->victim_port;
	w->ct.other.tag = tuple_hash(&w->ct.reverse_key);
	search->victim = EVICT_NEVER;
	search->victim_idle = 0;
	search->exhausted = 1;
	at = ct_find(&w->ct.reverse_key, w->ct.other.tag, CT_TABLE_ANY);
	holder = ct_entry_at(at);
	if (holder)
		port_evict_holder(w, holder);
	return port_claim(ctx, search, w);
}

/* Updates w->port_pressure with the result of a search. While a flood holds all ports, long
 * searches only cost time. */
static __always_inline void port_pressure_note(struct scratch *w, int exhausted)
{
	w->port_pressure -= w->port_pressure / PORT_PRESSURE_STEPS;
	if (exhausted)
		w->port_pressure += PORT_PRESSURE_MAX / PORT_PRESSURE_STEPS;
}

/* Returns whether to look for another free port before evicting a flow. */
static __always_inline int may_find_free_port(const struct scratch *w, __u32 attempts)
{
	return attempts <
	       (w->port_pressure > PORT_PRESSURE_MAX / 2 ? SNAT_TRIES_PRESSURE : SNAT_TRIES);
}

/* One attempt of the search. The sequence of ports depends on the flow: with a fixed successor of
 * each port, used ports would form long chains that every search follows to the end. The number of
 * the attempt is mixed more than once: otherwise attempts that differ only in a few low bits skip
 * ports of a small range. Global function: the verifier checks it once. */
__noinline int snat_attempt(struct context *ctx, struct snat_search *search, __u32 attempt)
{
	struct scratch *w = scratch_get();
	int last = attempt + 1 == SNAT_ATTEMPTS;

	if (!w || !search)
		return 1;
	if (!search->sctp && (attempt || !search->keep_port))
		w->ct.reverse_key.destination_port = snat_port(mix(mix(w->in.hash, attempt), 0));
	if (port_try(ctx, search, w))
		return 1;
	if (search->recover_only)
		return attempt + 1 >= SNAT_TRIES_PRESSURE;
	if (!last && may_find_free_port(w, attempt + 1))
		return 0;
	if (search->victim >= (last ? EVICT_NEVER : EVICT_IDLE))
		return 0;
	/* SCTP has only one port to try: it does not evict a handshake in progress. */
	if (search->sctp && search->victim == EVICT_UNASSURED)
		return 0;
	return port_evict(ctx, search, w);
}

/* Finds a port at which a backend's replies belong to no other flow. For SCTP only the client's own
 * port: the checksum covers the ports, and would have to be recomputed over the whole packet. It
 * may be outside the SNAT ranges, because local port ranges concern TCP and UDP. It can collide
 * only with an association of the node itself, from the same port to the same backend; excluding
 * ports for that would lock out clients that use them. */
static __always_inline int snat_choose_port(struct context *ctx, struct snat_search *search,
					    struct scratch *w)
{
	if (w->packet.tuple.protocol == IPPROTO_SCTP) {
		search->sctp = 1;
		snat_attempt(ctx, search, SNAT_ATTEMPTS - 1);
	} else {
		for (__u32 attempt = 0; attempt < SNAT_ATTEMPTS; attempt++)
			if (snat_attempt(ctx, search, attempt))
				break;
		if (!dry_run && !search->recover_only)
			port_pressure_note(w, search->exhausted || !search->found);
	}
	return search->found;
}
