/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Makes the SNAT ports of assured flows known to the kernel's conntrack (netfilter/own_entry.h). */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/table.h"
#include "conntrack/types.h"
#include "filter/source_class.h"
#include "netfilter/own_entry.h"
#include "packet/tuple.h"
#include "set_table/set_table.h"
#include "state/scratch.h"

/* Until when (seconds, CLOCK_MONOTONIC) entries may be added: the agent renews it while the
 * kernel's conntrack is in use and has room. 0: not now. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} kernel_room SEC(".maps");

/* How long the entry of a closed flow lasts at most: the kernel's conntrack has no order of
 * eviction among assured entries, and closed flows must not take the room of open ones. */
#define KERNEL_CLOSED_TICKS SECONDS_TO_TICKS(10)

static __always_inline int kernel_has_room(struct scratch *w)
{
	__u32 zero = 0;
	const __u32 *until = bpf_map_lookup_elem(&kernel_room, &zero);

	return until && (__s32)(*until - w->clock.second) > 0;
}

/* Returns whether netfilter may masquerade to the port of a flow: not to a pod, and not for flows
 * without SNAT. */
static __always_inline int shares_snat_port(const struct ct_entry *ct, const struct tuple *reply)
{
	return !(ct->flags & CT_LOCAL) && !ct->dsr && reply->protocol != IPPROTO_SCTP &&
	       class_of(&reply->source) != FROM_POD;
}

/* Tells the kernel's conntrack how long the packet's flow keeps its port. Global function: the
 * verifier checks it once. */
__noinline int kernel_entry_update(struct context *ctx, const struct ct_entry *ct)
{
	struct scratch *w = scratch_get();
	struct tuple *reply;
	__u32 timeout;

	if (!w || !ct || !kernel_entries || dry_run)
		return 0;
	reply = &w->ct.reverse_key;
	if (ct->flags & CT_REPLY)
		*reply = w->packet.tuple;
	else
		tuple_reverse(&ct->xlate, reply);
	if (!shares_snat_port(ct, reply))
		return 0;
	timeout = ct_timeout(reply->protocol, ct);
	if (ct->state == CT_CLOSED && timeout > KERNEL_CLOSED_TICKS)
		timeout = KERNEL_CLOSED_TICKS;
	own_entry_keep(ctx, reply, TICKS_TO_MS(timeout), kernel_has_room(w));
	return 0;
}
