/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Source validation of new flows, as by the stack (fib_validate_source): with rp_filter, and
 * without it only of the node's own addresses. IPv6 has none. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge/maps.h"
#include "edge/types.h"
#include "lb/address.h"
#include "packet/device.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "route/fib.h"
#include "state/scratch.h"

static __always_inline int has_route(long result)
{
	return result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH;
}

static __always_inline __u32 source_validation_at(__u32 device)
{
	const struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);

	return found ? found->sources : 0;
}

/* Returns whether the route to the source has several next hops, one of them by the input device:
 * the first lookup has chosen another one, with a metric. bpf_fib_lookup returns one next hop only,
 * and by the input device also one of a less specific route. Which of several tables applies is the
 * kernel's lookup alone to say. */
static __always_inline int source_has_next_hop(struct context *ctx, struct scratch *w,
					       __u32 validation)
{
	struct next_hop_key key = {.prefixlen = 64,
				   .device = packet_device(ctx),
				   .address = address_to_v4(&w->packet.tuple.source)};
	__u32 *is, metric = w->out.fib.rt_metric;

	if (!(validation & SOURCES_MULTIPATH))
		return 0;
	is = bpf_map_lookup_elem(&next_hops, &key);
	if (!is || !*is)
		return 0;
	return has_route(route_to_sender(ctx, w, BPF_FIB_LOOKUP_OUTPUT)) &&
	       w->out.fib.rt_metric == metric;
}

/* Returns whether the stack would accept the source of a packet at its input device. Global
 * function: the verifier checks it once. */
__noinline int source_is_valid(struct context *ctx, struct scratch *w)
{
	__u32 validation, device = packet_device(ctx);
	long result;

	if (!w || w->packet.is_v6)
		return 1;
	validation = source_validation_at(device);
	if (!validation)
		return 1;
	result = route_to_sender(ctx, w, 0);
	switch (result) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return !(validation & SOURCES_STRICT) || w->out.fib.ifindex == device ||
		       source_has_next_hop(ctx, w, validation);
	case BPF_FIB_LKUP_RET_NOT_FWDED: /* no route, or to the node itself */
		return !(validation & (SOURCES_STRICT | SOURCES_LOOSE | SOURCES_ALL_ROUTED));
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return !(validation & (SOURCES_STRICT | SOURCES_LOOSE));
	default: /* not known: a lightweight tunnel, or forwarding is off */
		return 1;
	}
}
