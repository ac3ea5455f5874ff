/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The state of a migration (internal/bpf/migrate.go). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "migrate/types.h"

/* One row: enum migration_phase. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} migration SEC(".maps");

/* The programs of the predecessor, which use its tables. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MIGRATION_HOOKS);
	__type(key, __u32);
	__type(value, __u32);
} predecessors SEC(".maps");

/* Set by the loader if there are tables of an earlier layout or size. */
const volatile __u8 has_predecessor = 0;

static __always_inline enum migration_phase migration_phase(void)
{
	__u32 zero = 0;
	const volatile __u32 *phase;

	if (!has_predecessor)
		return MIGRATION_DONE;
	phase = bpf_map_lookup_elem(&migration, &zero);
	return phase ? *phase : MIGRATION_DONE;
}
