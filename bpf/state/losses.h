/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts clients' packets that do not reach a backend, for the conditions that name backend or
 * frontend. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/maps.h"
#include "lb/types.h"
#include "state/counters.h"
#include "state/scratch.h"
#include "state/types.h"

/* Counts the packet in the scratch area, for which there is no route, no address or no port.
 * `asked` is the destination of its route lookup. Global function: the verifier checks it once. */
__noinline int count_loss(const struct address *backend, const struct address *asked,
			  enum edge_reason reason)
{
	struct scratch *w = scratch_get();
	struct loss_key key = {.reason = reason};
	struct loss new = {.packets = 1}, *known;

	if (!w || !backend || !asked || dry_run)
		return 0;
	key.backend = *backend;
	new.asked = *asked;
	if (reason != EDGE_DROP_NO_ROUTE)
		new.device = w->out.fib.ifindex;
	known = bpf_map_lookup_elem(&backend_losses, &key);
	if (!known) {
		bpf_map_update_elem(&backend_losses, &key, &new, BPF_NOEXIST);
		return 0;
	}
	__sync_fetch_and_add(&known->packets, 1);
	known->asked = new.asked;
	known->device = new.device;
	return 0;
}

/* Counts a packet that a frontend drops by its policy. Global function: the verifier checks it
 * once. */
__noinline int count_policy_drop(const struct frontend_key *frontend)
{
	struct frontend_key key;
	__u64 one = 1, *known;

	if (!frontend || dry_run)
		return 0;
	key = *frontend;
	known = bpf_map_lookup_elem(&policy_drops, &key);
	if (known)
		__sync_fetch_and_add(known, 1);
	else
		bpf_map_update_elem(&policy_drops, &key, &one, BPF_NOEXIST);
	return 0;
}
