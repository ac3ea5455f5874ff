/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The records of a flow that begins, and under which port its backend answers. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_types.h"
#include "half_open.h"
#include "packet.h"
#include "snat.h"
#include "track.h"
#include "tuple.h"
#include "workspace.h"

/* How many ports are tried for a flow. With 90 % of all in use one flow in 850
 * finds none. */
#define SNAT_ATTEMPTS 64

struct snat_search {
	/* other_key is the key of replies: its destination's port is to be found. `other` is
	 * their record to be. */
	struct workspace *workspace;
	__u8 keep_port; /* the one that is there is tried first */
	__u8 adopted;
	__u8 half; /* where the adopted flow's other record is */
	__u8 found;
	__u8 failed; /* there was a port, and no room for the record */
};

/* The record that has a port. If there is none the flow gets it: to store the record says
 * whether there is one already, and costs no more than to look. */
static __always_inline struct track *port_taken(struct snat_search *search, struct workspace *w)
{
	struct track *taken = bpf_map_lookup_elem(&tracks, &w->other_key);

	w->other.tag = tuple_hash(&w->other_key);
	search->half = 0;
	if (taken && taken->tag == w->other.tag)
		return taken;
	if (!dry_run && half_open_store(&w->other_key, &w->other, 1) == HALF_OPEN_STORED) {
		track_admit(&w->other_key, &w->other);
		return 0;
	}
	search->half = 1;
	taken = half_open_find(&w->other_key, w->other.tag);
	if (taken)
		return taken;
	search->failed = !dry_run;
	return 0;
}

/* Tries one port. No port always comes after the same other one, or those in use would
 * gather in chains that each flow follows to their end; mixed once, attempts that differ
 * in a few low bits leave ports of a small range out. One that the same flow has already, of
 * which the other record has been lost, is taken over. */
static long snat_search_step(__u32 attempt, struct snat_search *search)
{
	struct workspace *w = search->workspace;
	struct track *taken;

	if (attempt || !search->keep_port)
		w->other_key.destination_port = snat_port(mix(mix(w->hash, attempt), 0));
	taken = port_taken(search, w);
	if (taken) {
		tuple_reverse(&taken->becomes, &w->to);
		if (!tuple_equal(&w->to, &w->packet.tuple))
			return 0;
		/* Where nothing is stored, a flow that is over still has its records. */
		if (!dry_run || taken->state < TRACK_CLOSING) {
			w->track.state = taken->state;
			search->adopted = 1;
		}
	}
	search->found = 1;
	return 1;
}

/* Finds a port under which a backend answers this flow and no other one. For SCTP that
 * is the client's own or none: its checksum covers the ports, and would have to be made
 * anew of the whole packet. It is taken wherever it lies: ports that the node uses for
 * itself are of TCP and UDP. An association of the node's own with the same port of the
 * same backend is the one thing that it could meet, and to leave out a range for that
 * would lock out the clients that have their ports from there. */
static __always_inline int choose_port(struct snat_search *search, __u8 protocol)
{
	bpf_loop(protocol == IPPROTO_SCTP ? 1 : SNAT_ATTEMPTS, snat_search_step, search, 0);
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
	struct snat_search search = {};
	__u8 protocol;

	if (!w)
		return EDGE_DROP_NO_RECORD;
	protocol = w->packet.tuple.protocol;
	track_sequence(&w->packet, &w->track, 1);
	track_turn(&w->packet.tuple, &w->track, &w->other_key, &w->other);
	search.workspace = w;
	search.keep_port = keep_port || protocol == IPPROTO_SCTP;
	if (!choose_port(&search, protocol))
		return EDGE_DROP_NO_PORT;
	w->track.becomes.source_port = w->other_key.destination_port;
	if (search.failed || track_adopt(w, search.half || !search.adopted))
		return EDGE_DROP_NO_RECORD;
	w->to = w->track.becomes;
	return search.adopted ? EDGE_ADOPTED : EDGE_NEW;
}
