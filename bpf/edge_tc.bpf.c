// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge at tc. This object has all tables of the edge. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "edge/tc.h"
#include "migrate/maps.h"

/* Keeps types in the BTF for the agent: no variable has them. */
const struct edge_event *unused_edge_event __attribute__((unused));
const struct explanation *unused_explanation __attribute__((unused));
const enum edge_reason *unused_edge_reason __attribute__((unused));
const struct xfrm_pairs *unused_xfrm_pairs __attribute__((unused));
const enum routing_flag *unused_routing_flag __attribute__((unused));
const enum source_validation *unused_source_validation __attribute__((unused));
const enum ct_state *unused_ct_state __attribute__((unused));
const enum ct_flag *unused_ct_flag __attribute__((unused));
const enum prefilter_size *unused_prefilter_size __attribute__((unused));
const enum prefilter_multiplier *unused_prefilter_multiplier __attribute__((unused));
const enum set_mix *unused_set_mix __attribute__((unused));
const enum ct_timeout *unused_ct_timeout __attribute__((unused));
const enum prefilter_state *unused_prefilter_state __attribute__((unused));

const enum migration_phase *unused_migration_phase __attribute__((unused));
const enum migration_hook *unused_migration_hook __attribute__((unused));

SEC("tc")
int beeline_edge_ingress(struct __sk_buff *ctx)
{
	return tc_ingress(ctx);
}

SEC("tc")
int beeline_edge_egress(struct __sk_buff *ctx)
{
	return tc_egress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
