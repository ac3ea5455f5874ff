/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's conntrack (nf_conntrack), which netfilter tracks flows with. Not to be confused with
 * the edge's own (conntrack/conntrack.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "packet/tuple.h"
#include "packet/types.h"

/* Options of bpf_skb_ct_lookup: the part that all kernels have (Linux 5.18). */
struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

/* The kernel's structures, as far as they are read. */
union nf_inet_addr {
	__u32 all[4];
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union {
		__be16 all;
	} u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u8 protonum;
	} dst;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct ip_ct_tcp {
	__u8 state;
} __attribute__((preserve_access_index));

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} __attribute__((preserve_access_index));

struct nf_ct_ext {
	__u8 offset[4];
} __attribute__((preserve_access_index));

enum nf_ct_ext_id {
	NF_CT_EXT_HELPER,
	NF_CT_EXT_SEQADJ = 2,
	NF_CT_EXT_SYNPROXY = 8,
};

struct nf_conn {
	__u32 timeout;
	__u32 mark;
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	struct nf_ct_ext *ext;
	union nf_conntrack_proto proto;
} __attribute__((preserve_access_index));

/* Bits of nf_conn.status, and a state of TCP (linux/netfilter/nf_conntrack_common.h, _tcp.h). */
enum {
	IPS_SEEN_REPLY = 1 << 1,
	IPS_ASSURED = 1 << 2,
	IPS_SRC_NAT = 1 << 4,
	IPS_DST_NAT = 1 << 5,
	IPS_SEQ_ADJUST = 1 << 6,
	IPS_DYING = 1 << 9,
	IPS_FIXED_TIMEOUT = 1 << 10,
	IPS_HELPER = 1 << 13,
	IPS_OFFLOAD = 1 << 14,

	TCP_CONNTRACK_SYN_RECV = 2,
	TCP_CONNTRACK_ESTABLISHED = 3,
	TCP_CONNTRACK_TIME_WAIT = 7,
	TCP_CONNTRACK_CLOSE = 8,
};

/* Whether the kernel has bpf_skb_ct_lookup and bpf_xdp_ct_lookup (Linux 5.18, module nf_conntrack).
 * Set by the loader. */
const volatile __u8 kernel_conntrack = 0;

/* Weak: the edge is loaded without them, too (netfilter/known.h). */
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					 __u32 tuple__sz, struct bpf_ct_opts *opts,
					 __u32 opts__sz) __ksym __weak;
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple,
					 __u32 tuple__sz, struct bpf_ct_opts *opts,
					 __u32 opts__sz) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;
extern int bpf_ct_change_timeout(struct nf_conn *ct, __u32 ms) __ksym __weak;

#if IS_XDP
#define ct_lookup_by_kernel bpf_xdp_ct_lookup
#else
#define ct_lookup_by_kernel bpf_skb_ct_lookup
#endif

/* Fills in the tuple of a lookup. Returns its length. */
static __always_inline __u32 sock_tuple_set(struct bpf_sock_tuple *key, const struct tuple *t)
{
	if (address_is_v4(&t->source)) {
		key->ipv4.saddr = address_to_v4(&t->source);
		key->ipv4.daddr = address_to_v4(&t->destination);
		key->ipv4.sport = t->source_port;
		key->ipv4.dport = t->destination_port;
		return sizeof(key->ipv4);
	}
	__builtin_memcpy(key->ipv6.saddr, &t->source, sizeof(key->ipv6.saddr));
	__builtin_memcpy(key->ipv6.daddr, &t->destination, sizeof(key->ipv6.daddr));
	key->ipv6.sport = t->source_port;
	key->ipv6.dport = t->destination_port;
	return sizeof(key->ipv6);
}

/* Returns the flow with a tuple, in either direction; 0 if there is none in the default zone.
 * *direction is that of the tuple: 0 original, 1 reply. The caller releases the flow. */
static __always_inline struct nf_conn *netfilter_flow(struct context *ctx, const struct tuple *t,
						      __u8 *direction)
{
	struct bpf_ct_opts opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = t->protocol};
	struct bpf_sock_tuple key = {};
	struct nf_conn *ct;

	/* Two calls: Linux 6.1 accepts only a constant length. */
	if (sock_tuple_set(&key, t) == sizeof(key.ipv4))
		ct = ct_lookup_by_kernel(ctx, &key, sizeof(key.ipv4), &opts, sizeof(opts));
	else
		ct = ct_lookup_by_kernel(ctx, &key, sizeof(key.ipv6), &opts, sizeof(opts));
	*direction = opts.dir;
	return ct;
}
