/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The checksum of an IPv4 header. The stack verifies it first of all. */
#pragma once

#include <linux/ip.h>
#include <linux/types.h>

#include "packet/csum.h"
#include "packet/packet.h"

/* Returns whether the checksum of a header without options is right. IPv6 has none. */
static __always_inline int header_sum_is_right(struct context *ctx, const struct packet *p)
{
	const __u32 *words = linear_bytes(ctx, p->l3, sizeof(struct iphdr));
	__u64 sum = 0;

	if (p->is_v6)
		return 1;
	if (!words)
		return 0;
	for (__u32 i = 0; i < sizeof(struct iphdr) / sizeof(*words); i++)
		sum += words[i];
	return !checksum_of(checksum_fold(sum));
}
