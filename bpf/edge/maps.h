/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of fragmented datagrams (edge/fragment_ports.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");
