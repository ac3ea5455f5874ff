/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of datagrams that come in fragments. Only the first fragment has them; the others
 * take them from an entry that it leaves. An entry is stored only for a packet of a flow or for
 * a Service: other people's datagrams would evict those of ours. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "decapsulate.h"
#include "edge_tables.h"
#include "frontend.h"
#include "packet.h"
#include "tell.h"
#include "track.h"
#include "tuple.h"
#include "workspace.h"

/* How long an entry is good, in seconds: as long as Linux waits for the rest of a datagram
 * (net.ipv4.ipfrag_time). Senders use an identification again (RFC 6864 section 4.3). */
#define FRAGMENT_SECONDS 30

/* Whether a first fragment belongs to a flow, or asks for a Service. */
static __always_inline int fragment_is_ours(struct context *ctx, const struct workspace *w)
{
	const struct tuple *asked = &w->packet.tuple;
	struct frontend_key key = {.address = asked->destination,
				   .port = asked->destination_port,
				   .protocol = asked->protocol};
	int half;

	if (w->wrapping.dsr ? frontend_told(ctx, asked) : frontend_lookup(&key))
		return 1;
	return track_find(asked, tuple_hash(asked), &half) != 0;
}

/* Stores the ports of a first fragment, and gives a later one those of its first. Returns
 * whether the packet can be dealt with by its ports. Not static: the verifier looks at it
 * once. */
__noinline int fragment_ports(struct context *ctx)
{
	struct workspace *w = workspace_get();
	struct fragment_key key = {};
	const struct fragment *known;
	struct fragment ports = {};
	struct packet *p;

	if (!w)
		return 0;
	p = &w->packet;
	key.source = p->tuple.source;
	key.destination = p->tuple.destination;
	key.id = p->fragment_id;
	key.protocol = p->tuple.protocol;
	if (p->fragment == FRAGMENT_FIRST) {
		if (dry_run || !fragment_is_ours(ctx, w))
			return 1;
		ports.source_port = p->tuple.source_port;
		ports.destination_port = p->tuple.destination_port;
		ports.since = second_of(w);
		return !bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
	}
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known || second_of(w) - known->since > FRAGMENT_SECONDS)
		return 0;
	p->tuple.source_port = known->source_port;
	p->tuple.destination_port = known->destination_port;
	return 1;
}

/* Whether an address is a Service's and no node's: every other port of it is answered for, it
 * lies in a ServiceCIDR, or its pings are answered here. The stack would forward what is for
 * such an address, or keep fragments that nothing completes. */
static __always_inline int service_alone_has(const struct address *a)
{
	struct frontend_key key = {.address = *a};

	if (frontend_at(&key) || in_service_network(a))
		return 1;
	key.protocol = address_is_v4(a) ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	return frontend_at(&key) != 0;
}

/* What becomes of a later fragment whose ports are not known. The stack puts together what is
 * for an address of the node. */
static __always_inline int stray(struct context *ctx, const struct workspace *w)
{
	if (service_alone_has(&w->packet.tuple.destination))
		return lose(ctx, w, EDGE_DROP_FRAGMENT);
	return leave_alone(ctx, EDGE_NOT_OURS);
}
