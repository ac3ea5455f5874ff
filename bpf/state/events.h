/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts what happens to packets at the edge, and emits events. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/maps.h"
#include "state/counters.h"
#include "state/scratch.h"
#include "state/types.h"

/* Records the result of a dry run. */
static __noinline void explain(enum edge_reason reason)
{
	struct scratch *w = scratch_get();
	struct explanation *e = explanation_get();

	if (!w || !e)
		return;
	e->reason = reason;
	e->done = 1;
	e->packet = w->packet.tuple;
	e->xlate = w->out.to;
	e->service = w->in.service;
	e->dsr = w->encap.dsr;
	if (w->encap.dsr) {
		e->outer_source = w->encap.outer.source;
		e->outer_destination = w->encap.outer.destination;
	}
	if (!e->known)
		e->backend = w->ct.entry.lb.backend;
	e->device = w->out.fib.ifindex;
	if (w->packet.is_v6)
		__builtin_memcpy(&e->next_hop, &w->out.fib.ipv6_dst, sizeof(e->next_hop));
	else
		address_from_v4(&e->next_hop, w->out.fib.ipv4_dst);
	__builtin_memcpy(e->mac, w->out.fib.dmac, sizeof(e->mac));
}

static __always_inline void edge_count(enum edge_reason reason)
{
	struct edge_counters *counters;
	__u32 index = reason;

	if (dry_run) {
		explain(reason);
		return;
	}
	counters = edge_counters_get();
	barrier_var(index); /* the verifier needs this comparison, even if the compiler does not */
	if (counters && index < EDGE_REASONS)
		counters->count[index]++;
}

/* Updates the counters of a service. Not called for packets of established flows. */
static __always_inline void count_event(__u32 service, enum edge_reason reason)
{
	struct service_counters *counters = service_counters_get(service);

	if (!counters)
		return;
	if (reason == EDGE_NEW || reason == EDGE_UNTRACKED)
		counters->flows++;
	else if (reason == EDGE_REJECTED)
		counters->refused++;
	else if (reason != EDGE_RECOVERED)
		counters->dropped++;
}

/* Counts an event for its service, and emits it if there is a reader. Global function: the verifier
 * checks it once, and not for each path to a call. */
__noinline int emit_event(struct context *ctx, const struct scratch *w, enum edge_reason reason)
{
	__u32 zero = 0;
	struct edge_counters *counters;
	struct edge_event *event;
	__u32 *watched;

	if (!w || dry_run)
		return 0;
	count_event(w->in.service, reason);
	watched = bpf_map_lookup_elem(&edge_watched, &zero);
	if (!watched || !*watched)
		return 0;
	event = bpf_ringbuf_reserve(&edge_events, sizeof(*event), 0);
	if (!event) {
		counters = edge_counters_get();
		if (counters)
			counters->lost++;
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->time = bpf_ktime_get_ns();
	event->packet = w->packet.tuple;
	if (reason == EDGE_NEW || reason == EDGE_RECOVERED || reason == EDGE_UNTRACKED)
		event->xlate = w->out.to;
	event->service = w->in.service;
	event->device = packet_device(ctx);
	event->length = w->packet.length;
	event->reason = reason;
	event->xdp = IS_XDP;
	event->tcp_flags = w->packet.tcp_flags;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline enum action pass(struct context *ctx, enum edge_reason reason)
{
	edge_count(reason);
	return packet_pass(ctx);
}

/* Counts the packet in the scratch area, and emits an event. Global function: the verifier checks
 * it once. */
__noinline int note_event(struct context *ctx, enum edge_reason reason)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 0;
	edge_count(reason);
	return emit_event(ctx, w, reason);
}

static __always_inline enum action drop(struct context *ctx, enum edge_reason reason)
{
	note_event(ctx, reason);
	return packet_drop(ctx);
}
