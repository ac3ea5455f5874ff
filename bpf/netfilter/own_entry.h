/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Entries in the kernel's conntrack for flows that its netfilter does not see: they keep it from
 * masquerading another flow to the same port towards the same remote end. No packet passes them. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "netfilter/conntrack.h"
#include "packet/tuple.h"
#include "packet/types.h"

/* Whether the kernel has the functions below (Linux 6.0, module nf_conntrack). Set by the loader.
 */
const volatile __u8 kernel_entries = 0;

/* The mark of these entries ("bee" and the end of "line"). */
#define OWN_ENTRY_MARK 0xbee11e00

extern struct nf_conn *bpf_skb_ct_alloc(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					__u32 tuple__sz, struct bpf_ct_opts *opts,
					__u32 opts__sz) __ksym __weak;
extern struct nf_conn *bpf_xdp_ct_alloc(struct xdp_md *ctx, struct bpf_sock_tuple *tuple,
					__u32 tuple__sz, struct bpf_ct_opts *opts,
					__u32 opts__sz) __ksym __weak;
extern struct nf_conn *bpf_ct_insert_entry(struct nf_conn *ct) __ksym __weak;
extern void bpf_ct_set_timeout(struct nf_conn *ct, __u32 ms) __ksym __weak;
extern int bpf_ct_set_status(const struct nf_conn *ct, __u32 status) __ksym __weak;

#if IS_XDP
#define ct_alloc_by_kernel bpf_xdp_ct_alloc
#else
#define ct_alloc_by_kernel bpf_skb_ct_alloc
#endif

/* Returns whether an entry is one of these. */
static __always_inline int is_own_entry(const struct nf_conn *ct)
{
	return bpf_core_field_exists(ct->mark) && BPF_CORE_READ(ct, mark) == OWN_ENTRY_MARK;
}

/* Adds an entry for the flow whose replies have a tuple. Assured: the kernel does not evict it for
 * a new one. */
static __always_inline void own_entry_add(struct context *ctx, const struct tuple *reply, __u32 ms)
{
	struct bpf_ct_opts opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = reply->protocol};
	struct bpf_sock_tuple key = {};
	struct tuple original;
	struct nf_conn *ct;

	tuple_reverse(reply, &original);
	if (sock_tuple_set(&key, &original) == sizeof(key.ipv4))
		ct = ct_alloc_by_kernel(ctx, &key, sizeof(key.ipv4), &opts, sizeof(opts));
	else
		ct = ct_alloc_by_kernel(ctx, &key, sizeof(key.ipv6), &opts, sizeof(opts));
	if (!ct)
		return;
	if (bpf_core_field_exists(ct->mark))
		ct->mark = OWN_ENTRY_MARK;
	bpf_ct_set_timeout(ct, ms);
	bpf_ct_set_status(ct, IPS_SEEN_REPLY | IPS_ASSURED);
	ct = bpf_ct_insert_entry(ct);
	if (ct)
		bpf_ct_release(ct);
}

/* Adds the entry of a flow, or makes it last for some time from now. Another flow's entry stays.
 * Global function: the verifier checks it once. */
__noinline int own_entry_keep(struct context *ctx, const struct tuple *reply, __u32 ms, int add)
{
	struct nf_conn *ct;
	__u8 direction;

	if (!reply || !kernel_conntrack || !kernel_entries)
		return 0;
	ct = netfilter_flow(ctx, reply, &direction);
	if (!ct) {
		if (add)
			own_entry_add(ctx, reply, ms);
		return 0;
	}
	if (is_own_entry(ct))
		bpf_ct_change_timeout(ct, ms);
	bpf_ct_release(ct);
	return 0;
}
