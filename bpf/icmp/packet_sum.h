/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The sum of a range of a packet, of any length (RFC 1071). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "icmp/reply.h"
#include "packet/access.h"

/* 64 KiB in steps of SUM_MAX bytes. */
#define SUM_STEPS 128

struct packet_sum {
	struct context *ctx;
	struct reply_buffer *scratch;
	__u32 from;
	__u32 left;
	__s64 sum;
};

static long packet_sum_step(__u32 step, struct packet_sum *s)
{
	__u32 length = s->left < SUM_MAX ? s->left : SUM_MAX;

	if (!length || s->sum < 0)
		return 1;
	if (packet_load(s->ctx, s->from, s->scratch->bytes, length_between(length, 1, SUM_MAX))) {
		s->sum = -1;
		return 1;
	}
	/* Pad the last piece with zeros to a full word. */
	__builtin_memset(s->scratch->bytes + length_between(length, 1, SUM_MAX), 0, sizeof(__u32));
	s->sum = bpf_csum_diff(0, 0, (__be32 *)s->scratch->bytes,
			       length_between((length + 3) & ~3u, 4, SUM_MAX), s->sum);
	s->from += length;
	s->left -= length;
	return 0;
}

/* Returns the sum, less than 0 on error. It is 0 only if all bytes are 0. */
static __always_inline __s64 packet_sum(struct context *ctx, __u32 from, __u32 length)
{
	__u32 zero = 0;
	struct packet_sum s = {.ctx = ctx, .from = from, .left = length};

	s.scratch = bpf_map_lookup_elem(&reply_buffers, &zero);
	if (!s.scratch)
		return -1;
	bpf_loop(SUM_STEPS, packet_sum_step, &s, 0);
	return s.left ? -1 : s.sum;
}
