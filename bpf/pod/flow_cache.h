/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Recent decisions to let a flow take the shortcut, and the routes that they have found. The
 * decision takes lookups in half a dozen tables, which cost more than all else that is done for a
 * packet. Entries expire quickly, so that a change of the tables, of routes and neighbours, or of
 * the kernel's conntrack, takes effect. Packets that open or close a connection are always decided
 * (pod/opener.h). */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "packet/access.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "pod/deliver.h"
#include "pod/route.h"
#include "pod/types.h"
#include "state/scratch.h"

#define POD_FLOWS	1024
/* Lifetime in ticks (set_table/set_table.h): 50 ms. */
#define POD_FLOW_EXPIRY 48

/* The bits of the TOS, or traffic class, that are not ECN (RFC 3168 section 5). */
#define TOS_DSCP	0xfc

/* What an entry has. */
enum pod_flow_known {
	POD_FLOW_ROUTE = 1,    /* `to` is where the stack would send the packets */
	POD_FLOW_DECISION = 2, /* they take the shortcut */
};

struct pod_flow_entry {
	struct tuple tuple;
	__u32 since;		 /* tick of the lookups */
	__u32 device;		 /* input device */
	struct pod to;		 /* or the next hop (pod/route.h) */
	__u8 known;		 /* enum pod_flow_known */
	__u8 routed;		 /* the stack would route the packets, not bridge them */
	__u8 path;		 /* enum pod_path */
	__u8 tos;		 /* routing rules may match it */
	__u8 frame_to[ETH_ALEN]; /* the destination of the frame */
	__u8 by_device;		 /* to a pod: by the node's end of its device (pod_redirect) */
	__u8 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, POD_FLOWS);
	__type(key, __u32);
	__type(value, struct pod_flow_entry);
} pod_flows SEC(".maps");

/* Returns the place of a packet's flow. Per CPU, and bottom halves are off, so no other packet uses
 * it meanwhile. */
static __always_inline struct pod_flow_entry *pod_flow_place(const struct packet *p)
{
	__u32 slot = tuple_hash(&p->tuple) / ((1ull << 32) / POD_FLOWS);

	return bpf_map_lookup_elem(&pod_flows, &slot);
}

/* Returns whether an entry is of packets like this one. DSCP may change within a flow, and so may
 * the frame's destination; ECN changes with congestion, and no rule matches it. */
static __always_inline int pod_flow_same(struct context *ctx, struct scratch *w,
					 const struct pod_flow_entry *entry)
{
	return entry->device == ctx->ifindex && tuple_same(&entry->tuple, &w->packet.tuple) &&
	       !((entry->tos ^ w->packet.tos) & TOS_DSCP) &&
	       (!LINK_HEADER || frame_is_for(ctx, entry->frame_to)) &&
	       w->clock.tick - entry->since < POD_FLOW_EXPIRY;
}

/* Returns whether a packet takes the shortcut without another decision. A bridge keeps a tag. */
static __always_inline int pod_flow_valid(struct context *ctx, struct scratch *w,
					  const struct pod_flow_entry *entry)
{
	return entry->known & POD_FLOW_DECISION &&
	       !(w->packet.tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) &&
	       (entry->routed || !is_odd_for_bridge(ctx, &w->packet)) &&
	       pod_flow_same(ctx, w, entry);
}

/* Notes of what packets an entry is. */
static __always_inline void pod_flow_set(struct context *ctx, struct scratch *w,
					 struct pod_flow_entry *entry, int routed)
{
	const struct ethhdr *eth = linear_bytes(ctx, 0, sizeof(*eth));

	entry->tuple = w->packet.tuple;
	entry->since = w->clock.tick;
	entry->device = ctx->ifindex;
	entry->routed = routed;
	entry->tos = w->packet.tos;
	entry->known = is_unresolved(&entry->to) ? 0 : POD_FLOW_ROUTE;
	if (!LINK_HEADER)
		return;
	if (eth)
		mac_copy(entry->frame_to, eth->h_dest);
	else
		entry->known = 0;
}

/* Finds where the stack would send the packet in the scratch area: to a pod of this node, or, if
 * `to` is 0, to other nodes. `t` is its tuple after translation of the destination. Returns whether
 * it has the shortcut; then entry->to is set. Global function: the verifier checks it once. */
__noinline int pod_flow_find(struct __sk_buff *ctx, const struct tuple *t, const struct pod *to,
			     __u32 routed, struct pod_flow_entry *entry)
{
	struct scratch *w = scratch_get();

	if (!w || !t || !entry)
		return 0;
	if (entry->known && entry->routed == routed && (entry->path == POD_PATH_OUT) == !to &&
	    pod_flow_same(ctx, w, entry) && (!to || entry->to.device == to->device)) {
		w->out.fib_cached = 1;
		return 1;
	}
	entry->known = 0;
	if (!to) {
		if (!pod_route_out(ctx, w, &entry->to))
			return 0;
	} else if (routed) {
		if (!pod_route_local(ctx, w, t, to, &entry->to))
			return 0;
	} else {
		if (is_unresolved(to))
			return 0;
		entry->to = *to;
	}
	pod_flow_set(ctx, w, entry, routed);
	return 1;
}

/* pod_flow_find, for packets of a path. */
static __always_inline int pod_flow_route(struct context *ctx, const struct tuple *t,
					  const struct pod *to, int routed,
					  struct pod_flow_entry *entry, enum pod_path path)
{
	if (!pod_flow_find(ctx, t, to, routed, entry))
		return 0;
	entry->path = path;
	return 1;
}
