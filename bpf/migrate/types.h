/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The migration of tables with an earlier layout or size, shared by the programs and the agent
 * (internal/bpf/migrate.go). */
#pragma once

/* Value of `migration`. */
enum migration_phase {
	/* The new conntrack tables are being filled. Nothing else uses them. */
	MIGRATION_COPY,
	/* Programs use the new tables. Flows that the last copy has missed are in the old ones. */
	MIGRATION_DRAIN,
	/* The old tables are not needed any more. */
	MIGRATION_DONE,
};

/* Index of `predecessors`. */
enum migration_hook {
	MIGRATION_INGRESS,
	MIGRATION_EGRESS,
	/* At devices without MAC addresses. */
	MIGRATION_L3_INGRESS,
	MIGRATION_L3_EGRESS,
	MIGRATION_HOOKS,
};
