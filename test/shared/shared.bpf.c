// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* Runs the functions of bpf/ that the agent computes, too, for tests of both: one test run per
 * input. A tc program, because its headers are complete; the packet does not matter. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "conntrack/conntrack.h"
#include "conntrack/table.h"
#include "dsr/stateless.h"
#include "encap/encap.h"
#include "filter/prefilter.h"
#include "offload/cache.h"
#include "lb/affinity.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "packet/tuple.h"
#include "set_table/set_table.h"
#include "sock/reserved_port.h"
#include "sock/stats.h"

/* The inputs, and from `tuple_hash` on the results. */
struct shared_call {
	struct tuple tuple;
	struct affinity_key affinity;
	struct set_eviction mark;
	__u32 now;   /* tick, and a time in microseconds */
	__u32 sets;  /* of a table */
	__u32 slots; /* of a Maglev table */
	__u32 dsr;   /* enum dsr */
	__u8 is_v6;
	__u8 flags; /* enum ct_flag, of the entry of `tuple` */
	__u8 reserved[2];
	struct set_tags tags; /* a set, in which an entry with `mark` needs a place */
	struct set_evictions evictions;

	__u32 tuple_hash;
	__u64 tuple_sum;
	__u64 affinity_sum;
	__u32 tag;    /* of tuple_hash */
	__u32 first;  /* set, by tuple_sum */
	__u32 second; /* set, by tuple_sum */
	__u32 slot;   /* by tuple_hash */
	__u32 expired;
	__u32 rank;
	__u32 pick; /* enum set_pick */
	__u32 overhead;
	/* Whether the tables have something for the destination of `tuple`. */
	__u32 untracked; /* a bit in `untracked_frontends` */
	__u32 prefilter; /* a bit or a network in `prefilters` */
	__u32 bind;	 /* a port in `reserved_ports` */
	__u32 frontend;	 /* row in `frontends`; 0: none */
	__u32 frontend_kind;
	__u32 done;
	__u32 rtt_bucket;  /* of `now` */
	__u64 offload_sum; /* of `tuple`, device `now`, tunnel `sets` */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct shared_call);
} shared_calls SEC(".maps");

static __always_inline void run_tables(struct shared_call *c)
{
	c->first = set_first(c->tuple_sum, c->sets);
	c->second = set_second(c->tuple_sum, c->sets);
	c->tag = set_tag(c->tuple_hash);
	c->expired = eviction_expired(&c->mark, c->now);
	c->rank = eviction_rank(&c->mark);
	c->pick = set_pick(&c->tags, &c->evictions, c->mark.owner, c->now);
}

static __always_inline void run_lookups(struct shared_call *c, const struct scratch *w)
{
	struct frontend_key key = {.address = c->tuple.destination,
				   .port = c->tuple.destination_port,
				   .protocol = c->tuple.protocol};
	__u32 row;
	struct frontend *frontend = frontend_numbered(&key, &row);

	c->frontend = frontend ? row : 0;
	c->frontend_kind = frontend ? frontend->kind : 0;
	c->untracked = may_be_untracked(&w->packet);
	c->prefilter = prefilter_may_match(&c->tuple.destination, c->tuple.destination_port);
	c->bind = port_reserved(c->tuple.destination_port, c->tuple.protocol, c->is_v6 ? 6 : 4);
}

SEC("tc")
int beeline_shared(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	struct shared_call *c = bpf_map_lookup_elem(&shared_calls, &zero);
	struct scratch *w = scratch_get();
	struct ct_entry ct = {};

	if (!c || !w)
		return 0;
	ct.flags = c->flags;
	w->packet.tuple = c->tuple;
	c->tuple_hash = tuple_hash(&c->tuple);
	c->tuple_sum = ct_sum(&c->tuple);
	c->affinity_sum = affinity_sum(&c->affinity);
	c->slot = chosen_slot(c->slots, c->tuple_hash);
	c->overhead = dsr_overhead(c->dsr, c->is_v6);
	run_tables(c);
	run_lookups(c, w);
	ct_prefilter_add(&c->tuple, &ct);
	c->rtt_bucket = rtt_bucket(c->now);
	c->offload_sum = offload_sum(&c->tuple, c->now, c->sets);
	c->done = 1;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
