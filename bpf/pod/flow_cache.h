/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Recent decisions to let a flow take the shortcut. The decision takes lookups in half a dozen
 * tables, which cost more than all else that is done for a packet. Entries expire quickly, so that
 * a change of the tables, or of the kernel's conntrack, takes effect. Packets that open or close a
 * connection are always decided (pod/opener.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "pod/types.h"
#include "state/scratch.h"

#define POD_FLOWS	1024
/* Lifetime in ticks (set_table/set_table.h): 50 ms. */
#define POD_FLOW_EXPIRY 48

struct pod_flow_entry {
	struct tuple tuple;
	__u32 since;   /* tick of the decision */
	__u32 device;  /* input device; 0: the entry is empty */
	struct pod to; /* device 0: to another node */
	__u8 routed;   /* the stack would route the packets, not bridge them */
	__u8 path;     /* enum pod_path */
	__u8 role;     /* enum pod_role of the input device */
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

static __always_inline int pod_flow_valid(struct scratch *w, const struct pod_flow_entry *entry,
					  __u32 device)
{
	return entry->device == device && !(w->packet.tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) &&
	       tuple_same(&entry->tuple, &w->packet.tuple) &&
	       tick_of(w) - entry->since < POD_FLOW_EXPIRY;
}
