/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of fragmented datagrams. Only the first fragment has them; they are stored in an entry
 * for the others. An entry is stored only for a flow or a Service: those of unrelated datagrams
 * would evict others. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "conntrack/fragments.h"
#include "conntrack/types.h"
#include "dsr/decap.h"
#include "lb/address.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "state/events.h"
#include "state/scratch.h"
#include "state/types.h"

/* Lifetime of an entry in seconds, of a datagram that is not complete: the reassembly timeout of
 * Linux (net.ipv4.ipfrag_time). Senders reuse an identification (RFC 6864 section 4.3). */
#define FRAGMENT_SECONDS 30

/* Returns whether a first fragment belongs to a flow, or is for a Service. */
static __always_inline int fragment_is_ours(struct context *ctx, const struct scratch *w)
{
	const struct tuple *asked = &w->packet.tuple;
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};
	int unreplied;

	if (w->decap.dsr ? frontend_of_balancer(ctx, asked) : frontend_lookup(&key))
		return 1;
	return ct_lookup(asked, tuple_hash(asked), &unreplied) != 0;
}

/* Stores the ports of a first fragment, and sets those of a later one. Returns whether the packet's
 * ports are known. Global function: the verifier checks it once. */
__noinline int fragment_ports(struct context *ctx)
{
	struct scratch *w = scratch_get();
	struct fragment_key key = {};
	const struct fragment *known;
	struct fragment ports = {};
	struct packet *p;

	if (!w)
		return 0;
	p = &w->packet;
	fragment_key_set(&key, p);
	if (p->fragment == FRAGMENT_FIRST) {
		if (dry_run || !fragment_is_ours(ctx, w))
			return 1;
		ports.source_port = p->tuple.source_port;
		ports.destination_port = p->tuple.destination_port;
		ports.since = w->clock.second;
		return !bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
	}
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known || w->clock.second - known->since > FRAGMENT_SECONDS)
		return 0;
	p->tuple.source_port = known->source_port;
	p->tuple.destination_port = known->destination_port;
	return 1;
}

/* Returns whether an address is a Service's and not a node's: it has a frontend for all other
 * ports, is in a ServiceCIDR, or the edge replies to its pings. The stack would forward packets to
 * such an address, or hold fragments that are never completed. */
static __always_inline int only_service_has(const struct address *a)
{
	struct frontend_key key = {.address = *a};

	if (frontend_at(&key) || in_service_network(a))
		return 1;
	key.protocol = address_is_v4(a) ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	return frontend_at(&key) != 0;
}

/* Handles a later fragment with unknown ports. The stack reassembles those for the node's own
 * addresses. */
static __always_inline enum action orphan_fragment(struct context *ctx, const struct scratch *w)
{
	if (only_service_has(&w->packet.tuple.destination))
		return drop(ctx, EDGE_DROP_FRAGMENT);
	return pass(ctx, EDGE_NOT_SERVICE);
}
