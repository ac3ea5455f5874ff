/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The checksum of an ICMP message. The kernel's conntrack finds a message with a wrong one invalid,
 * and no stack replies to it. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "icmp/packet_sum.h"
#include "packet/csum.h"
#include "packet/packet.h"
#include "state/scratch.h"

/* Returns whether the checksum of the packet's message, which is not fragmented, is right. ICMPv6
 * includes a pseudo header (RFC 4443 section 2.3). Global function: the verifier checks it once. */
__noinline int icmp_sum_is_right(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const __u32 *addresses;
	__u32 length;
	__u64 all;
	__s64 sum;

	if (!w)
		return 0;
	length = w->packet.l3 + w->packet.length - w->packet.l4;
	sum = packet_sum(ctx, w->packet.l4, length);
	if (sum < 0)
		return 0;
	all = sum;
	if (w->packet.is_v6) {
		addresses = (const __u32 *)&w->packet.tuple;
		for (int i = 0; i < 8; i++)
			all += addresses[i];
		all += bpf_htonl(length) + (__u64)bpf_htonl(IPPROTO_ICMPV6);
	}
	return !checksum_of(checksum_fold(all));
}
