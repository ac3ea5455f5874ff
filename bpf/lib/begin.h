/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The records of a flow that begins, and under which port its backend answers. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_types.h"
#include "conntrack_table.h"
#include "packet.h"
#include "snat.h"
#include "track.h"
#include "tuple.h"
#include "workspace.h"

/* How many ports are tried for a flow: before one is taken from another flow, where free ones are
 * found as a rule and where they are not, and at most. */
#define SNAT_GRACE	  32
#define SNAT_GRACE_SCARCE 8
#define SNAT_ATTEMPTS	  64

/* w->scarce of searches that all, or none, find no free port. */
#define SCARCE_MAX	  256
#define SCARCE_STEPS	  16

/* A handshake is over by then, if it is to succeed at once. */
#define HANDSHAKE_TICKS	  SECONDS_TO_TICKS(3)

/* An open flow gives way only if it has been idle for so long. */
#define IDLE_TICKS	  SECONDS_TO_TICKS(10)

/* Which flow gives its port to another one first, when all ports that are tried are in use. Of one
 * kind that is the one that has been idle for longest. What TCP's handshake has established keeps
 * its port until it ends or expires. */
enum gives_way {
	GIVES_WAY_DEAD,	 /* it has expired */
	GIVES_WAY_STALE, /* not assured, and no handshake that may go on */
	GIVES_WAY_CLOSED,
	GIVES_WAY_BEGUN, /* not assured */
	GIVES_WAY_IDLE,	 /* assured, but for established TCP */
	GIVES_WAY_NEVER,
};

/* A search for the destination's port of w->other_key, the key of replies; w->other is their entry
 * to be. */
struct snat_search {
	__u8 keep_port; /* the one that is there is tried first */
	__u8 adopted;
	__u8 half; /* where the adopted flow's other entry is */
	__u8 found;
	__u8 adopt_only; /* the packet begins no flow */
	__u8 sctp;	 /* the port stays */
	__u8 failed;	 /* there was a port, and no room for the entry */
	__u8 victim;	 /* enum gives_way of the best of those in use */
	__u8 in_vain;	 /* a port was taken from another flow */
	__be16 port;	 /* that it has */
	__u32 idle;	 /* for how many ticks it has been */
};

/* When a flow gives way whose entry is somewhere, and for how long it has been idle. */
static __always_inline enum gives_way gives_way(struct workspace *w, const struct track *track,
						__u32 at, __u32 *idle)
{
	__u8 protocol = w->packet.tuple.protocol;
	const struct set_mark *mark = ct_mark(at);
	__u32 now = tick_of(w);

	*idle = 0;
	if (!mark)
		return GIVES_WAY_NEVER;
	*idle = now + ct_timeout(protocol, track->state) - mark->until;
	if ((__s32)*idle < 0)
		*idle = 0;
	if (mark_expired(mark, now))
		return GIVES_WAY_DEAD;
	if (track->state == TRACK_CLOSED)
		return GIVES_WAY_CLOSED;
	if (at & CT_HALF_OPEN)
		return *idle >= HANDSHAKE_TICKS ? GIVES_WAY_STALE : GIVES_WAY_BEGUN;
	if (*idle < IDLE_TICKS || (protocol != IPPROTO_UDP && track->state == TRACK_ESTABLISHED))
		return GIVES_WAY_NEVER;
	return GIVES_WAY_IDLE;
}

/* Removes the flow that has a port: it gives way. */
static __always_inline void take_port(struct workspace *w, const struct track *taken)
{
	if (dry_run)
		return;
	w->victim.key = w->other_key;
	tuple_reverse(&taken->becomes, &w->victim.other);
	ct_add_up(taken);
	ct_remove(&w->other_key, w->other.tag, IN_ANY);
	ct_evict_other();
}

/* Stores the entry of replies under a port that nobody has. Returns whether the search is over. */
static __always_inline int port_lend(struct snat_search *search, struct workspace *w)
{
	enum ct_stored stored = CT_STORED;

	if (!dry_run) {
		track_admit(&w->other_key, &w->other);
		stored = ct_store(&w->other_key, &w->other, IN_HALF_OPEN, 1);
		if (stored == CT_THERE)
			return 0; /* another CPU was quicker */
		search->failed = stored != CT_STORED;
	}
	search->found = 1;
	return 1;
}

/* Tries the port in other_key. One that the same flow has already, of which the other entry has
 * been lost, is taken over. */
static __always_inline int port_try(struct snat_search *search, struct workspace *w)
{
	enum gives_way way;
	struct track *taken;
	__u32 at, idle;

	w->other.tag = tuple_hash(&w->other_key);
	at = ct_at(&w->other_key, w->other.tag, IN_ANY);
	taken = ct_track(at);
	if (!taken)
		return search->adopt_only ? 0 : port_lend(search, w);
	tuple_reverse(&taken->becomes, &w->to);
	if (tuple_equal(&w->to, &w->packet.tuple)) {
		/* Where nothing is stored, a flow that is over still has its entries. */
		if (!dry_run || taken->state < TRACK_CLOSING) {
			w->track.state = taken->state;
			search->half = (at & CT_HALF_OPEN) != 0;
			search->adopted = 1;
		}
		search->found = 1;
		return 1;
	}
	if (search->adopt_only)
		return 0;
	way = gives_way(w, taken, at, &idle);
	if (way == GIVES_WAY_DEAD) {
		take_port(w, taken);
		return port_lend(search, w);
	}
	if (way < search->victim || (way == search->victim && idle > search->idle)) {
		search->victim = way;
		search->idle = idle;
		search->port = w->other_key.destination_port;
	}
	return 0;
}

/* Takes the port of the flow that gives way first of those that have been met. */
static __always_inline int port_take(struct snat_search *search, struct workspace *w)
{
	struct track *taken;
	__u32 at;

	w->other_key.destination_port = search->port;
	w->other.tag = tuple_hash(&w->other_key);
	search->victim = GIVES_WAY_NEVER;
	search->idle = 0;
	search->in_vain = 1;
	at = ct_at(&w->other_key, w->other.tag, IN_ANY);
	taken = ct_track(at);
	if (taken)
		take_port(w, taken);
	return port_lend(search, w);
}

/* Notes whether a search has found no free port. A flood takes all: then each of its packets would
 * pay for a long search in vain. */
static __always_inline void scarce_note(struct workspace *w, int in_vain)
{
	w->scarce -= w->scarce / SCARCE_STEPS;
	if (in_vain)
		w->scarce += SCARCE_MAX / SCARCE_STEPS;
}

/* Whether a free port may still come up before one is taken from another flow. */
static __always_inline int in_grace(const struct workspace *w, __u32 attempts)
{
	return attempts < (w->scarce > SCARCE_MAX / 2 ? SNAT_GRACE_SCARCE : SNAT_GRACE);
}

/* One attempt. No port always comes after the same other one, or those in use would
 * gather in chains that each flow follows to their end; mixed once, attempts that differ
 * in a few low bits leave ports of a small range out. Not static: the verifier looks at it once. */
__noinline int snat_attempt(struct snat_search *search, __u32 attempt)
{
	struct workspace *w = workspace_get();
	int last = attempt + 1 == SNAT_ATTEMPTS;

	if (!w || !search)
		return 1;
	if (!search->sctp && (attempt || !search->keep_port))
		w->other_key.destination_port = snat_port(mix(mix(w->hash, attempt), 0));
	if (port_try(search, w))
		return 1;
	if (search->adopt_only)
		return attempt + 1 >= SNAT_GRACE_SCARCE;
	if (!last && in_grace(w, attempt + 1))
		return 0;
	if (search->victim >= (last ? GIVES_WAY_NEVER : GIVES_WAY_IDLE))
		return 0;
	/* There is one port for SCTP: a handshake that goes on keeps it. */
	if (search->sctp && search->victim == GIVES_WAY_BEGUN)
		return 0;
	return port_take(search, w);
}

/* Finds a port under which a backend answers this flow and no other one. For SCTP that
 * is the client's own or none: its checksum covers the ports, and would have to be made
 * anew of the whole packet. It is taken wherever it lies: ports that the node uses for
 * itself are of TCP and UDP. An association of the node's own with the same port of the
 * same backend is the one thing that it could meet, and to leave out a range for that
 * would lock out the clients that have their ports from there. */
static __always_inline int choose_port(struct snat_search *search, struct workspace *w,
				       __u8 protocol)
{
	if (protocol == IPPROTO_SCTP) {
		search->sctp = 1;
		snat_attempt(search, SNAT_ATTEMPTS - 1);
	} else {
		for (__u32 attempt = 0; attempt < SNAT_ATTEMPTS; attempt++)
			if (snat_attempt(search, attempt))
				break;
		if (!dry_run && !search->adopt_only)
			scarce_note(w, search->in_vain || !search->found);
	}
	return search->found;
}

/* Keeps the records of a flow that begins. Two flows of one client may have the same
 * backend, to which they would be one: then the later one, too, has another port there,
 * as all have that do not keep their own. Not static: the verifier looks at it once. It looks for
 * the workspace itself, since until Linux 6.2 no argument can be a map's key. Returns enum
 * edge_reason. */
__noinline int begin_flow(int keep_port)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	struct snat_search search = {.victim = GIVES_WAY_NEVER};
	__u8 protocol;

	if (!w)
		return EDGE_DROP_NO_RECORD;
	protocol = w->packet.tuple.protocol;
	track_first(w);
	track_turn(&w->packet.tuple, &w->track, &w->other_key, &w->other);
	search.adopt_only = begins_nothing(w);
	search.keep_port = keep_port || protocol == IPPROTO_SCTP;
	if (!choose_port(&search, w, protocol))
		return search.adopt_only ? EDGE_DROP_INVALID : EDGE_DROP_NO_PORT;
	w->track.becomes.source_port = w->other_key.destination_port;
	if (search.failed || track_adopt(w, search.half || !search.adopted))
		return EDGE_DROP_NO_RECORD;
	w->to = w->track.becomes;
	return search.adopted ? EDGE_ADOPTED : EDGE_NEW;
}
