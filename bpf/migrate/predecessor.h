/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Passes packets to the programs of the predecessor, while its tables are migrated. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/types.h"
#include "lb/frontend.h"
#include "migrate/maps.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "state/scratch.h"

/* Returns whether a packet may belong to a flow that the new tables lack, or whose entry is a copy
 * that may be outdated (CT_COPIED). The first packet of a flow to a frontend does not. Nor does a
 * datagram to a frontend: if its flow is not in the new tables, this program selects the same
 * backend and the same SNAT port as the predecessor's, because both follow from hashes. A tunnel
 * packet, a fragment and an ICMP error do not depend on an entry of their own key. */
static __always_inline int migration_unknown(struct context *ctx)
{
	struct scratch *w = scratch_get();
	struct frontend_key key;
	struct ct_entry *ct;
	struct packet *p;
	int unreplied;

	if (!w)
		return 0;
	p = &w->packet;
	scratch_reset(w);
	if (packet_parse(ctx, p) != PARSED || p->fragment)
		return 0;
	ct = ct_lookup(&p->tuple, tuple_hash(&p->tuple), &unreplied);
	if (ct)
		return ct->flags & CT_COPIED;
	if (p->tuple.protocol == IPPROTO_TCP && !(p->tcp_flags & TCP_SYN))
		return 1;
	key = (struct frontend_key){.address = p->tuple.destination,
				    .port = p->tuple.destination_port,
				    .protocol = p->tuple.protocol};
	return !frontend_lookup(&key);
}

/* Returns whether the predecessor's program at the same hook must handle a packet. */
static __always_inline int migration_predecessor(struct context *ctx)
{
	switch (migration_phase()) {
	case MIGRATION_COPY:
		return 1;
	case MIGRATION_DRAIN:
		return migration_unknown(ctx);
	default:
		return 0;
	}
}
