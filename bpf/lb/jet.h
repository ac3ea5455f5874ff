/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The history of a frontend's slots (FRONTEND_HISTORY; struct frontend_lists in lb/types.h). */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "lb/backend_select.h"
#include "lb/members.h"
#include "lb/types.h"

/* Returns the lists of a frontend that has a history, or 0. */
static __always_inline const struct frontend_lists *jet_lists(const struct frontend *frontend)
{
	return frontend->flags & FRONTEND_HISTORY ? lists_of(frontend) : 0;
}

/* Returns the history word of a flow. */
static __always_inline __u32 jet_word(const struct slot_range *words, __u32 hash)
{
	return slot_backend(words->first + chosen_slot(words->count, hash));
}

/* Returns whether the slot of a flow of an untracked frontend is contested, so that the flow needs
 * an entry. All slots are if the size of the table has changed. */
static __always_inline int jet_contested(const struct frontend *frontend, __u32 hash)
{
	const struct frontend_lists *lists = jet_lists(frontend);

	return lists && (jet_word(&lists->history, hash) & HISTORY_CONTESTED) != 0;
}

/* Returns the ID of the backend of a flow without an entry, and sets *dsr to how packets reach it;
 * 0 if the history has none. UDP flows without an entry are treated as new. */
static __always_inline __u32 jet_backend(const struct frontend *frontend, __u8 protocol, __u32 hash,
					 __u32 *dsr)
{
	const struct frontend_lists *lists;
	__u32 word;

	if (protocol == IPPROTO_UDP)
		return 0;
	lists = jet_lists(frontend);
	if (!lists)
		return 0;
	word = jet_word(&lists->history, hash);
	if (!(word & HISTORY_CONTESTED) || !(word & HISTORY_BACKEND))
		return 0;
	*dsr = lists->history_dsr;
	return word & HISTORY_BACKEND;
}
