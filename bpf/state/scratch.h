/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The scratch area of the programs: the state of the packet that is being handled, and the clock.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/types.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/types.h"
#include "route/types.h"
#include "set_table/set_table.h"

/* A packet from a balancer (encap/wire.h), and its backend. */
struct decap {
	/* The tuple of the frame: of the outer header, or of the packet with the option. */
	struct tuple outer;
	struct address backend;
	__be16 port;  /* of the backend; 0: not in the packet */
	__u8 dsr;     /* enum dsr; DSR_NONE: not encapsulated */
	__u8 ecn;     /* of the outer header */
	__u32 length; /* number of bytes to remove */
	__u8 next;    /* IPv6 option: next header */
	__u8 reserved[3];
	__u32 chosen; /* ID in `backends`; 0: not looked up yet */
};

/* State of one packet; too large for the stack. */
struct scratch {
	/* If the packet is encapsulated, `packet` is the inner packet, with its offsets in the
	 * frame. */
	struct packet packet;
	struct packet quoted; /* in an ICMP error */
	struct decap decap;
	/* What is known about the packet before its path is. */
	struct {
		__u32 hash;	  /* of its tuple */
		__u32 service;	  /* ID of the Service that it is for; 0: none */
		__u32 egress;	  /* 1: it is leaving the node */
		__u32 node_port;  /* the untracked frontend is at an address of the node */
		__u32 port_taken; /* the client's port is in use at the backend (CT_PORT_TAKEN) */
		__u32 reused;	  /* its tuple is that of a flow that has ended */
		__u32 may_be_forged; /* it arrived by another device than its flow's others, and
					shows nothing that only the client knows */
	} in;
	/* What the packet becomes, and where it leaves. */
	struct {
		struct tuple to;    /* after translation; DSR: at the backend's node */
		struct tuple asked; /* by which the stack routes the packet (route/fib.h) */
		struct route_key key;
		struct bpf_fib_lookup fib;
		__u32 fib_cached; /* `fib` is from the next-hop cache (route/fib_cache.h) */
		/* The packet exceeds the MTU of an IPv6 route, which the stack applies in its
		 * output, after it has decremented the hop limit (route/fib.h). */
		__u32 too_big_at_output;
	} out;
	/* DSR: what is put in front of the packet. */
	struct {
		struct tuple outer; /* of the outer header */
		__u32 dsr;	    /* enum dsr */
		__u32 headroom[32]; /* buffer for the outer headers */
	} encap;
	/* Entries of conntrack that are looked for and made. */
	struct {
		struct ct_entry entry, other; /* of the packet's direction, and of the other one */
		struct tuple reverse_key;
		/* A flow that is evicted (conntrack/table.h). */
		struct {
			struct tuple key, other, reversed;
			__u32 evicted;
			__u32 reserved;
		} victim;
	} ct;
	/* Keys of lookups. */
	struct {
		struct network_key network;   /* of a client (filter/source_class.h) */
		struct frontend_key frontend; /* of a Service (pod/service.h) */
	} keys;
	/* The following persist from packet to packet. */
	struct own_mac own;
	struct {
		__u64 jiffies; /* when the others were read */
		__u32 second;  /* CLOCK_MONOTONIC */
		__u32 tick;    /* the same time in ticks (set_table/set_table.h) */
	} clock;
	__u32 port_pressure; /* rises with searches that find no free SNAT port
				(conntrack/snat_alloc.h) */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* Returns the scratch area. Per CPU: tc and XDP programs run with bottom halves disabled, so no
 * other packet is handled on this CPU meanwhile. */
static __always_inline struct scratch *scratch_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* Reads the coarse clock, CLOCK_MONOTONIC, once per jiffy: the kernel advances both at the same
 * time. */
static __always_inline void clock_read(struct scratch *w)
{
	__u64 jiffies = bpf_jiffies64(), ns;

	if (w->clock.jiffies == jiffies)
		return;
	ns = bpf_ktime_get_coarse_ns();
	w->clock.second = ns / 1000000000ull;
	w->clock.tick = tick_of_ns(ns);
	w->clock.jiffies = jiffies;
}

/* Resets the state of the previous packet, and reads the clock: once, so that the verifier meets
 * its branch once. */
static __always_inline void scratch_reset(struct scratch *w)
{
	__builtin_memset(&w->packet, 0, sizeof(w->packet));
	w->in.service = 0;
	w->in.egress = 0;
	w->decap.dsr = DSR_NONE;
	w->decap.chosen = 0;
	w->encap.dsr = DSR_NONE;
	w->in.port_taken = 0;
	w->in.reused = 0;
	w->in.may_be_forged = 0;
	clock_read(w);
}
