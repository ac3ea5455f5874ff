/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The Internet checksum (RFC 1071) and its incremental update. */
#pragma once

#include <linux/types.h>

/* Returns the checksum of a sum of words. */
static __always_inline __sum16 checksum_of(__s64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Adds a difference to a checksum (RFC 1624). */
static __always_inline __sum16 checksum_plus(__sum16 check, __u64 difference)
{
	__u64 sum = (__u16)~check + difference;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Folds a sum to 32 bits, without changing its checksum. */
static __always_inline __u32 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

/* Returns the difference between the checksums of two sequences of words, added to `sum` (RFC
 * 1624). Not bpf_csum_diff: the call alone costs more. */
static __always_inline __u32 checksum_difference(const void *before, const void *after, int words,
						 __u32 sum)
{
	const __u32 *from = before, *to = after;
	__u64 all = sum;

	for (int i = 0; i < words; i++)
		all += (__u64)(__u32)~from[i] + to[i];
	return checksum_fold(all);
}
