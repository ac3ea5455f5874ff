/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Creates the entries of a new flow. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/snat_alloc.h"
#include "packet/tuple.h"
#include "state/scratch.h"
#include "state/types.h"

/* Creates the entries of a new flow. Two flows of one client may be translated to the same tuple at
 * a backend; then the later one gets another port, like all flows that do not keep the client's.
 * Gets the scratch area itself, because before Linux 6.2 a function argument cannot be a map key.
 * Returns enum edge_reason. Global function: the verifier checks it once. */
__noinline int ct_create(struct context *ctx, int keep_port)
{
	struct snat_search search = {.victim = EVICT_NEVER};
	struct scratch *w = scratch_get();

	if (!w)
		return EDGE_DROP_INSERT_FAILED;
	ct_init(w);
	ct_reverse(&w->packet.tuple, &w->ct.entry, &w->ct.reverse_key, &w->ct.other);
	search.recover_only = ct_is_invalid(w);
	search.keep_port = keep_port || w->packet.tuple.protocol == IPPROTO_SCTP;
	/* The stack sees the flows of backends on this node, and has entries of them. One may be
	 * the client's direct flow to the backend. Nothing in datagrams tells which flow they reply
	 * to: the one to the Service, whose first datagram can be forged, gets another port, as by
	 * netfilter. After a flow with the same tuple the entry may be of that. */
	search.shared = !(w->ct.entry.flags & CT_LOCAL) ||
			(w->packet.tuple.protocol == IPPROTO_UDP && !w->in.reused);
	if (!snat_choose_port(ctx, &search, w))
		return search.recover_only ? EDGE_DROP_INVALID : EDGE_DROP_NO_PORT;
	w->ct.entry.xlate.source_port = w->ct.reverse_key.destination_port;
	if (search.failed || ct_restore(w, search.unreplied || !search.recovered))
		return EDGE_DROP_INSERT_FAILED;
	w->out.to = w->ct.entry.xlate;
	return search.recovered ? EDGE_RECOVERED : EDGE_NEW;
}
