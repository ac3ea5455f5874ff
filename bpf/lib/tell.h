/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of packets at the edge, for those who count and those who watch. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_tables.h"
#include "packet.h"
#include "tables.h"
#include "workspace.h"

/* What is counted for a service at once: no packet of an established flow. */
static __always_inline void service_count(__u32 service, enum edge_reason reason)
{
	struct service_counters *counters = counters_of(service);

	if (!counters)
		return;
	if (reason == EDGE_NEW || reason == EDGE_UNTRACKED)
		counters->flows++;
	else if (reason == EDGE_REJECTED)
		counters->refused++;
	else if (reason != EDGE_ADOPTED)
		counters->dropped++;
}

/* Tells whoever watches, and whoever asks later how a service fares. Not static: the verifier
 * looks at it once, wherever a packet comes to its end. */
__noinline int tell(struct context *ctx, const struct workspace *w, enum edge_reason reason)
{
	__u32 zero = 0;
	struct edge_counters *counters;
	struct edge_event *event;
	__u32 *watched;

	if (!w || dry_run)
		return 0;
	service_count(w->service, reason);
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
	if (reason == EDGE_NEW || reason == EDGE_ADOPTED || reason == EDGE_UNTRACKED)
		event->becomes = w->to;
	event->service = w->service;
	event->device = packet_device(ctx);
	event->length = w->packet.length;
	event->reason = reason;
	event->xdp = IS_XDP;
	event->tcp_flags = w->packet.tcp_flags;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline int leave_alone(struct context *ctx, enum edge_reason reason)
{
	edge_count(reason);
	return packet_pass(ctx);
}

static __always_inline int lose(struct context *ctx, const struct workspace *w,
				enum edge_reason reason)
{
	edge_count(reason);
	tell(ctx, w, reason);
	return packet_drop(ctx);
}
