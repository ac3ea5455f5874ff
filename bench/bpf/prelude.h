/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Runs in front of a program that is timed. BPF_PROG_TEST_RUN passes the same packet to each run,
 * as the previous run has left it; the prelude makes it the next frame of a range. Include after
 * the definitions of `context` and frame_restore, which resets the packet to the length of a frame.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/access.h"

#include "frame.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frame);
} frames SEC(".maps");

enum target { TARGET_NOTHING, TARGET_MINIMAL, TARGET_EDGE, TARGET_RECORDS, TARGETS };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

/* The range, the position of the next run in it, and the program to call. */
__u32 first_frame, frame_count, next_frame, target;
/* Whether packets come with another length than a frame's. */
__u32 resized;
/* Runs in which the call of the program failed. */
__u32 missed;

static __always_inline int prelude(struct context *ctx)
{
	__u32 at = first_frame + next_frame;
	const struct frame *frame = bpf_map_lookup_elem(&frames, &at);
	__u64 *data, *end;

	if (resized && frame_restore(ctx)) {
		missed++;
		return -1;
	}
	data = PACKET_POINTER(ctx, data);
	end = PACKET_POINTER(ctx, data_end);
	if (!frame || data + FRAME_LENGTH / 8 > end) {
		missed++;
		return -1;
	}
	next_frame = next_frame + 1 < frame_count ? next_frame + 1 : 0;
	for (int i = 0; i < FRAME_LENGTH / 8; i++)
		data[i] = frame->words[i];
	bpf_tail_call(ctx, &targets, target);
	missed++;
	return -1;
}
