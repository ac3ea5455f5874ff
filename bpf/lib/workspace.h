/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a program works on, and what it counts. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_tables.h"
#include "packet.h"
#include "select.h"
#include "set_table.h"
#include "tables.h"

/* How a packet has come that a balancer has sent here (dsr.h), and for which backend. */
struct wrapping {
	/* That the frame has: the outer header's ends, or those of the packet that bears an
	 * option. */
	struct tuple outer;
	struct address backend;
	__be16 port;  /* of the backend; 0: not told */
	__u8 dsr;     /* enum dsr; DSR_NONE: it has come as it is */
	__u8 ecn;     /* of the outer header */
	__u32 length; /* of what is taken away */
	__u8 next;    /* of IPv6's options: what follows them */
	__u8 reserved[3];
	__u32 told; /* id in `backends`; 0: not looked for yet */
};

/* What is worked on, one packet after another: it does not fit on the stack. */
struct workspace {
	struct packet packet;
	struct packet quoted; /* by an ICMP error */
	struct tuple to;      /* what the packet becomes; with DSR at the backend's node */
	struct tuple outer;   /* DSR: of what is put around the packet */
	__u32 dsr;	      /* enum dsr */
	__u32 room[32];	      /* DSR: what is put around it */
	int result;	      /* what becomes of a packet that cannot be sent */
	__u32 hash;	      /* of the packet's tuple */
	__u32 service;	      /* that the packet asks for; 0: none */
	__u32 leaving;	      /* the packet is on its way out of the node */
	/* Where it has come in one, `packet` is what is inside, at its place in the frame. */
	struct wrapping wrapping;
	struct track track;
	struct tuple other_key;
	struct track other;
	struct bpf_fib_lookup fib;
	/* A flow whose entries make room for others (conntrack_table.h). */
	struct {
		struct tuple key, other, turned;
		__u32 evicted;
		__u32 reserved;
	} victim;
	struct network_key network; /* of a client (client.h) */
	__u32 remembered; /* `fib` is of a way that is remembered, not of a look-up (way.h) */
	/* These stay from packet to packet. */
	struct own_mac own;
	__u64 jiffies; /* when `second` was read */
	__u32 second;
	__u32 tick;
	__u32 scarce; /* how often there was no free port lately (begin.h) */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct workspace);
} workspaces SEC(".maps");

/* No other packet is worked on meanwhile on the same CPU: bottom halves are off in
 * programs of tc and XDP. */
static __always_inline struct workspace *workspace_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&workspaces, &zero);
}

/* Forgets the packet before. */
static __always_inline void workspace_clear(struct workspace *w)
{
	__builtin_memset(&w->packet, 0, sizeof(w->packet));
	w->service = 0;
	w->leaving = 0;
	w->wrapping.dsr = DSR_NONE;
	w->wrapping.told = 0;
	w->dsr = DSR_NONE;
}

/* Reads the coarse clock, CLOCK_MONOTONIC. The kernel counts jiffies and moves that clock in the
 * same step, so it is read once for each. */
static __always_inline void clock_read(struct workspace *w)
{
	__u64 jiffies = bpf_jiffies64(), ns;

	if (w->jiffies == jiffies)
		return;
	ns = bpf_ktime_get_coarse_ns();
	w->second = ns / 1000000000ull;
	w->tick = tick_of_ns(ns);
	w->jiffies = jiffies;
}

/* The second it is. */
static __always_inline __u32 second_of(struct workspace *w)
{
	clock_read(w);
	return w->second;
}

/* The tick it is (set_table.h). */
static __always_inline __u32 tick_of(struct workspace *w)
{
	clock_read(w);
	return w->tick;
}

/* What a dry run has found out. */
static __noinline void explain(enum edge_reason reason)
{
	__u32 zero = 0;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);
	struct explanation *e = explanation_get();

	if (!w || !e)
		return;
	e->reason = reason;
	e->done = 1;
	e->packet = w->packet.tuple;
	e->becomes = w->to;
	e->service = w->service;
	e->dsr = w->dsr;
	if (w->dsr) {
		e->outer_source = w->outer.source;
		e->outer_destination = w->outer.destination;
	}
	if (!e->known)
		e->backend = w->track.backend;
	e->device = w->fib.ifindex;
	if (w->packet.is_v6)
		__builtin_memcpy(&e->next_hop, &w->fib.ipv6_dst, sizeof(e->next_hop));
	else
		address_from_v4(&e->next_hop, w->fib.ipv4_dst);
	__builtin_memcpy(e->mac, w->fib.dmac, sizeof(e->mac));
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
	barrier_var(index); /* compared here, whatever the compiler knows of it */
	if (counters && index < EDGE_REASONS)
		counters->count[index]++;
}
