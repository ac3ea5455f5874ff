/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The map of the prefilter. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "filter/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct prefilter);
} prefilters SEC(".maps");
