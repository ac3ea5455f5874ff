/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Source validation: the stack drops IPv4 packets whose source is an address of the node, or, with
 * rp_filter, one that the node does not reach by the device that they arrive by
 * (fib_validate_source). So a host on the node network cannot pose as a pod behind a tunnel. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "packet/device.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "pod/deliver.h"
#include "pod/route.h"
#include "pod/types.h"
#include "route/fib.h"
#include "state/scratch.h"

#define RP_FILTER_STRICT 1

/* Returns whether the stack would accept the source of a packet from another node, and route
 * replies to other nodes. It decides about all others: the source may be its own, or of a pod that
 * is not known yet. While a device has rp_filter=1, the agent excludes routes and rules whose
 * result this lookup cannot tell (internal/shortcut/pod/reverse_path.go). Global function: the
 * verifier checks it once. */
__noinline int source_is_of_nodes(struct __sk_buff *ctx, struct scratch *w)
{
	const struct pod_device *in, *out;
	struct packet *p;
	enum routed routed;

	if (!w)
		return 0;
	p = &w->packet;
	if (address_is_no_source(&p->tuple.source))
		return 0;
	tuple_reverse(&p->tuple, &w->ct.reverse_key);
	/* A length that fits any MTU: the lookup of a packet that is too big returns no device. */
	routed =
		fib_lookup(ctx, w, 1, p->tuple.protocol, &w->ct.reverse_key, packet_device(ctx), 0);
	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return 0;
	out = pod_device_at(w->out.fib.ifindex);
	if (!out || out->role != POD_ROLE_NODES)
		return 0;
	if (p->is_v6 || w->out.fib.ifindex == packet_device(ctx))
		return 1;
	in = pod_device_at(packet_device(ctx));
	return in && in->rp_filter != RP_FILTER_STRICT;
}

/* Returns whether the stack would accept the source of a packet of a pod that is to leave by a
 * device, which it asks with rp_filter: whether a reply that arrives there is routed to the device
 * of this packet. Other replies take the stack, too. Keeps the route in the scratch area. Global
 * function: the verifier checks it once. */
__noinline int source_is_of_pod(struct __sk_buff *ctx, struct scratch *w, __u32 out)
{
	struct bpf_fib_lookup fib = {.family = AF_INET, .tot_len = 1};
	const struct tuple *t;
	long result;

	if (!w)
		return 0;
	t = &w->packet.tuple;
	fib.ifindex = stack_device_of(out);
	fib.l4_protocol = t->protocol;
	fib.sport = t->destination_port;
	fib.dport = t->source_port;
	fib.tos = w->packet.tos;
	fib.ipv4_src = address_to_v4(&t->destination);
	fib.ipv4_dst = address_to_v4(&t->source);
	result = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	return (result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH) &&
	       fib.ifindex == stack_device_of(packet_device(ctx));
}
