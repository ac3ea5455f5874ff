/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What flow offload asks of a flow of the kernel's conntrack. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "offload/types.h"
#include "lb/address.h"
#include "netfilter/conntrack.h"
#include "packet/tuple.h"
#include "packet/types.h"

/* The length of a jiffy in nanoseconds; set by the loader. */
const volatile __u32 jiffy_ns = 4000000;

/* Linux 6.0. */
extern int bpf_ct_change_status(struct nf_conn *nfct, __u32 status) __ksym;

static __always_inline void read_address(struct address *a, const void *from, int is_v4)
{
	__be32 v4;

	if (is_v4) {
		bpf_probe_read_kernel(&v4, sizeof(v4), from);
		address_from_v4(a, v4);
		return;
	}
	bpf_probe_read_kernel(a, sizeof(*a), from);
}

/* Reads the tuple of one direction. The index is a constant: the verifier allows no other. */
#define READ_TUPLE(ct, direction, t, is_v4)                                         \
	do {                                                                        \
		read_address(&(t)->source,                                          \
			     __builtin_preserve_access_index(                       \
				     &(ct)->tuplehash[direction].tuple.src.u3.all), \
			     is_v4);                                                \
		read_address(&(t)->destination,                                     \
			     __builtin_preserve_access_index(                       \
				     &(ct)->tuplehash[direction].tuple.dst.u3.all), \
			     is_v4);                                                \
		(t)->source_port = (ct)->tuplehash[direction].tuple.src.u.all;      \
		(t)->destination_port = (ct)->tuplehash[direction].tuple.dst.u.all; \
	} while (0)

static __always_inline void netfilter_tuple(struct nf_conn *ct, __u8 direction, struct tuple *t,
					    const struct tuple *like)
{
	int is_v4 = address_is_v4(&like->source);

	__builtin_memset(t, 0, sizeof(*t));
	t->protocol = like->protocol;
	if (direction)
		READ_TUPLE(ct, 1, t, is_v4);
	else
		READ_TUPLE(ct, 0, t, is_v4);
}

/* Returns whether the kernel has an extension of a flow. */
static __always_inline int has_extension(const struct nf_ct_ext *ext, __u32 id)
{
	__u8 offset = 0;

	bpf_probe_read_kernel(&offset, sizeof(offset),
			      (const void *)ext + bpf_core_field_offset(ext->offset) + id);
	return offset != 0;
}

#define EXTENSION(id)                                                             \
	(bpf_core_enum_value_exists(enum nf_ct_ext_id, id)                        \
		 ? has_extension(ext, bpf_core_enum_value(enum nf_ct_ext_id, id)) \
		 : 0)

/* Returns whether something on the stack changes more of a flow's packets than its tuple. */
static __always_inline int has_helper(struct nf_conn *ct)
{
	const struct nf_ct_ext *ext = ct->ext;

	if (ct->status & (IPS_SEQ_ADJUST | IPS_HELPER))
		return 1;
	return ext && (EXTENSION(NF_CT_EXT_HELPER) || EXTENSION(NF_CT_EXT_SEQADJ) ||
		       EXTENSION(NF_CT_EXT_SYNPROXY));
}

/* Returns whether both sides want a flow: TCP after its handshake, UDP after an answer. */
static __always_inline int is_established(struct nf_conn *ct, __u8 protocol)
{
	unsigned long wanted = IPS_SEEN_REPLY;

	if (protocol == IPPROTO_TCP)
		wanted |= IPS_ASSURED;
	if ((ct->status & (wanted | IPS_DYING)) != wanted)
		return 0;
	return protocol != IPPROTO_TCP || ct->proto.tcp.state == TCP_CONNTRACK_ESTABLISHED;
}

/* Returns a hash of the mark of an entry, by which rules may decide about the flow. */
static __always_inline __u16 netfilter_mark(struct nf_conn *ct)
{
	if (!bpf_core_field_exists(ct->mark))
		return 0;
	return ct->mark * 0x9e3779b1u >> 16;
}

/* Returns the idle time, in milliseconds, after which the kernel deletes a flow whose last packet
 * it has just seen. */
static __always_inline __u32 netfilter_timeout(struct nf_conn *ct)
{
	__u32 left = ct->timeout - (__u32)bpf_jiffies64();

	return (__s32)left < 0 ? 0 : (__u32)((__u64)left * jiffy_ns / 1000000);
}
