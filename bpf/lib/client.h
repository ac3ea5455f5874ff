/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who asks, and what of the tables decides. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "edge_tables.h"
#include "edge_types.h"
#include "tables.h"
#include "workspace.h"

/* 1 if a word is 0, and 0 otherwise, without a branch: the verifier need not follow each. */
static __always_inline __u64 is_zero(__u64 word)
{
	return ~(word | -word) >> 63;
}

/* Whether an address is one of those networks of pods that the door has. */
static __always_inline int among_pods(const struct door *door, const struct address *a)
{
	const __u32 *w = address_words_const(a);
	__u64 first, last, among = 0;

	if (address_is_v4(a)) {
		for (int i = 0; i < DOOR_PODS; i++)
			among |= is_zero((w[3] & door->pods4[i].mask) ^ door->pods4[i].value);
		return among;
	}
	first = (__u64)w[1] << 32 | w[0];
	last = (__u64)w[3] << 32 | w[2];
	for (int i = 0; i < DOOR_PODS; i++) {
		const struct door_network6 *n = &door->pods6[i];

		among |= is_zero(((first & n->mask[0]) ^ n->value[0]) |
				 ((last & n->mask[1]) ^ n->value[1]));
	}
	return among;
}

static __always_inline int door_has_all_pods(const struct door *door)
{
	return *(const volatile __u32 *)&door->pods_whole;
}

/* The key is in the workspace: the stack of what calls this is nearly full. */
static __always_inline enum source_class class_in_table(const struct address *source)
{
	struct workspace *w = workspace_get();
	enum network *network;

	if (!w)
		return FROM_OUTSIDE;
	w->network.prefixlen = 128;
	w->network.address = *source;
	network = bpf_map_lookup_elem(&networks, &w->network);
	return network && *network == NETWORK_POD ? FROM_POD : FROM_OUTSIDE;
}

/* Where a client is. The table is asked only where the door does not have all networks of pods:
 * to look an address up costs more than to compare it with a few. */
static __always_inline enum source_class class_of(const struct address *source)
{
	__u32 zero = 0;
	const struct door *door = bpf_map_lookup_elem(&doors, &zero);

	if (!door || !door_has_all_pods(door))
		return class_in_table(source);
	return among_pods(door, source) ? FROM_POD : FROM_OUTSIDE;
}

static __always_inline void explain_choice(const struct frontend *frontend, enum source_class class)
{
	struct explanation *e = explanation_get();

	if (!e)
		return;
	e->frontend = frontend->key;
	e->class = class;
}
