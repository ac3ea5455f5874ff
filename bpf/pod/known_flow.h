/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows that stay on the stack because somebody tracks them: the edge translates its flows, and
 * netfilter may translate those of the kernel's conntrack. A flow that conntrack has seen one
 * direction of must not leave it with the other: rules that drop `ctstate INVALID` would drop the
 * rest. A flow that began on the shortcut is unknown to both, and stays there. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/conntrack.h"
#include "filter/prefilter.h"
#include "lb/address.h"
#include "netfilter/conntrack.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "state/scratch.h"

/* Ends the entry of a TCP connection that is over and that nobody translates. Returns whether it
 * was one. `direction` is that of the SYN that opens another one with the same tuple. conntrack
 * itself takes such a SYN for a new connection (nf_conntrack_tcp_packet). Otherwise each connection
 * on the stack would keep the next one with its ports there. */
static __always_inline int end_closed_flow(struct nf_conn *ct, __u8 direction)
{
	__u8 state = BPF_CORE_READ(ct, proto.tcp.state);

	return !direction && (state == TCP_CONNTRACK_TIME_WAIT || state == TCP_CONNTRACK_CLOSE) &&
	       !(BPF_CORE_READ(ct, status) & (IPS_SRC_NAT | IPS_DST_NAT)) &&
	       !bpf_ct_change_timeout(ct, 0);
}

/* Returns whether the kernel's conntrack has a flow with this tuple, in either direction. `opens`:
 * the packet is the SYN of a connection. Global function: the verifier checks it once. */
__noinline int kernel_has_flow(struct __sk_buff *ctx, const struct tuple *t, __u32 opens)
{
	struct nf_conn *ct;
	__u8 direction;
	int has;

	if (!t)
		return 0;
	ct = netfilter_flow(ctx, t, &direction);
	if (!ct)
		return 0;
	has = !opens || !end_closed_flow(ct, direction);
	bpf_ct_release(ct);
	return has;
}

/* Returns whether a tuple, or its reverse, may be of a flow of the edge, or for a Service. */
static __always_inline int edge_may_have_flow(const struct tuple *t)
{
	__u32 zero = 0;
	const struct prefilter *prefilter = bpf_map_lookup_elem(&prefilters, &zero);
	const __u64 *bits = prefilter ? prefilter_bits(prefilter) : 0;
	struct prefilter_query there = {
		.source = prefilter_address_of(&t->source),
		.destination = prefilter_address_of(&t->destination),
		.source_port = t->source_port,
		.destination_port = t->destination_port,
	};
	struct prefilter_query back = {
		.source = there.destination,
		.destination = there.source,
		.source_port = t->destination_port,
		.destination_port = t->source_port,
	};

	return !bits || prefilter_match(bits, &there, 1) || prefilter_match(bits, &back, 1);
}

enum edge_flow {
	EDGE_HAS_NONE,
	EDGE_HAS_FLOW,
	EDGE_HAS_PODS_FLOW, /* one that the shortcut may take (pod/service.h) */
};

/* Returns whether the edge has an entry with a tuple, or its reverse (enum edge_flow), and sets
 * w->ct.entry.device to the device by which the client's packets arrive. Global function: the
 * verifier checks it once. */
__noinline int edge_has_flow(struct scratch *w, const struct tuple *t)
{
	const struct ct_entry *ct;
	int unreplied;

	if (!w || !t)
		return EDGE_HAS_NONE;
	ct = ct_lookup(t, tuple_hash(t), &unreplied);
	if (!ct) {
		tuple_reverse(t, &w->ct.reverse_key);
		ct = ct_lookup(&w->ct.reverse_key, tuple_hash(&w->ct.reverse_key), &unreplied);
	}
	if (!ct)
		return EDGE_HAS_NONE;
	w->ct.entry.device = ct->device;
	return is_local_reply(ct) && ct->device ? EDGE_HAS_PODS_FLOW : EDGE_HAS_FLOW;
}
