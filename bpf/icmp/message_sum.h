/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The checksum of an ICMP message, a TCP segment or a UDP datagram. If it is wrong, the kernel's
 * conntrack finds the packet invalid, and no stack replies. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "icmp/packet_sum.h"
#include "packet/csum.h"
#include "packet/packet.h"
#include "state/scratch.h"

/* Returns the sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1). The words
 * before an IPv4 address in the tuple add nothing. */
static __always_inline __u64 pseudo_sum(const struct packet *p, __u8 protocol)
{
	const __u32 *addresses = (const __u32 *)&p->tuple;
	__u64 sum = bpf_htonl(p->l3 + p->length - p->l4) + (__u64)bpf_htonl(protocol);

	for (int i = 0; i < 8; i++)
		sum += addresses[i];
	return sum;
}

/* Returns whether the checksum of an ICMP message, which is not fragmented, is right. Only ICMPv6
 * has a pseudo header (RFC 4443 section 2.3). Global function: the verifier checks it once. */
__noinline int icmp_sum_is_right(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const struct packet *p;
	__s64 sum;

	if (!w)
		return 0;
	p = &w->packet;
	sum = packet_sum(ctx, p->l4, p->l3 + p->length - p->l4);
	if (sum < 0)
		return 0;
	if (p->is_v6)
		sum += pseudo_sum(p, IPPROTO_ICMPV6);
	return !checksum_of(checksum_fold(sum));
}

/* Returns whether the checksum of a TCP segment or UDP datagram is right, or left to the device:
 * the field then has the sum of the pseudo header. Fragments are not verified. Global function: the
 * verifier checks it once. */
__noinline int segment_sum_is_right(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const struct packet *p;
	__sum16 check;
	__u64 pseudo;
	__s64 sum;

	if (!w)
		return 0;
	p = &w->packet;
	if (p->fragment || p->tuple.protocol == IPPROTO_SCTP || packet_sum_verified(ctx))
		return 1;
	if (packet_load(ctx, checksum_offset(p), &check, sizeof(check)))
		return 0;
	if (!check && p->tuple.protocol == IPPROTO_UDP)
		return 1;
	pseudo = pseudo_sum(p, p->tuple.protocol);
	sum = packet_sum(ctx, p->l4, p->l3 + p->length - p->l4);
	return sum >= 0 && (!checksum_of(checksum_fold(sum + pseudo)) ||
			    check == (__sum16)~checksum_of(checksum_fold(pseudo)));
}
