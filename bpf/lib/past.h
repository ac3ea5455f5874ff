/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a frontend remembers of an earlier table (FRONTEND_HISTORY; struct frontend in types.h
 * says where it stands). */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"
#include "select.h"
#include "types.h"

/* Where the words stand: as many as the earlier table had slots. */
static __always_inline void past_words(const struct frontend *frontend, struct decision *words)
{
	words->count = slot_backend(frontend->kept_first - 3);
	words->first = frontend->kept_first - 3 - words->count;
}

static __always_inline __u32 past_word(const struct decision *words, __u32 hash)
{
	return slot_backend(words->first + chosen_slot(words, hash));
}

/* Whether a flow of an untracked frontend needs a record. Where the table has another size by
 * now, all words say so. */
static __always_inline int past_contested(const struct frontend *frontend, __u32 hash)
{
	struct decision words;

	if (!(frontend->flags & FRONTEND_HISTORY))
		return 0;
	past_words(frontend, &words);
	return (past_word(&words, hash) & HISTORY_CONTESTED) != 0;
}

/* The backend of a flow that has no record, and in which way its packets get there; 0: nothing
 * is known of such flows. Those of UDP that have no record are as good as new. */
static __always_inline __u32 past_backend(const struct frontend *frontend, __u8 protocol,
					  __u32 hash, __u32 *dsr)
{
	struct decision words;
	__u32 word;

	if (!(frontend->flags & FRONTEND_HISTORY) || protocol == IPPROTO_UDP)
		return 0;
	past_words(frontend, &words);
	word = past_word(&words, hash);
	if (!(word & HISTORY_CONTESTED) || !(word & HISTORY_BACKEND))
		return 0;
	*dsr = slot_backend(frontend->kept_first - 2);
	return word & HISTORY_BACKEND;
}
