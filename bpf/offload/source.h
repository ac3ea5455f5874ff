/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Source validation of flows in the cache, as by the stack (fib_validate_source): a route to the
 * source may have moved to another device since the flow was learned. IPv6 has none. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "offload/maps.h"
#include "offload/types.h"
#include "packet/packet.h"
#include "state/scratch.h"

/* Returns whether the stack accepts the source of a flow's packet at the device by which it has
 * arrived. It decides about those that have no route, or, if the device has rp_filter=1, another
 * route than this lookup's. Global function: the verifier checks it once. */
__noinline int offload_source_valid(struct __sk_buff *ctx, struct scratch *w,
				    const struct offload_flow *flow)
{
	__u32 device = ctx->ifindex;
	struct bpf_fib_lookup *fib;
	const __u32 *flags;
	long result;

	if (!w || !flow)
		return 0;
	if (w->packet.is_v6)
		return 1;
	fib = &w->out.fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = AF_INET;
	fib->ifindex = flow->device; /* the stack has replies arrive there */
	fib->tot_len = 1;	     /* fits any MTU */
	fib->l4_protocol = w->packet.tuple.protocol;
	fib->ipv4_src = address_to_v4(&flow->to.destination);
	fib->ipv4_dst = address_to_v4(&w->packet.tuple.source);
	result = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	/* With UNSUPP_LWT, a route by a tunnel in external mode, the device is not known. */
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH &&
	    result != BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return 0;
	if (result != BPF_FIB_LKUP_RET_UNSUPP_LWT && fib->ifindex == device)
		return 1;
	flags = bpf_map_lookup_elem(&offload_devices, &device);
	return flags && !(*flags & OFFLOAD_DEVICE_STRICT);
}
