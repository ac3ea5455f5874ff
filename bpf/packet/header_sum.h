/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The checksum of an IPv4 header. The stack verifies it first of all, and drops the packet if it is
 * wrong. */
#pragma once

#include <linux/ip.h>
#include <linux/types.h>

#include "packet/csum.h"
#include "packet/packet.h"

/* The greatest number of words that a header has (RFC 791 section 3.1). */
#define HEADER_WORDS 15

/* Returns whether the checksum of a header without options is right. */
static __always_inline int header_sum_is_right(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;

	return !checksum_of((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
}

/* Returns whether a header with options is complete and its checksum right. The header is between
 * two offsets. Global function: the verifier checks it once. */
__noinline int long_header_sum_is_right(struct context *ctx, __u32 at, __u32 end)
{
	const __u32 *word;
	__u64 sum = 0;

	for (int i = 0; i < HEADER_WORDS && at < end; i++) {
		word = packet_bytes(ctx, at, sizeof(*word));
		if (!word)
			return 0;
		sum += *word;
		at += sizeof(*word);
	}
	return !checksum_of(sum);
}
