/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The source class of a client. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "filter/maps.h"
#include "filter/types.h"
#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "state/counters.h"
#include "state/scratch.h"
#include "state/types.h"

/* Returns 1 if a word is 0, else 0. Branch-free, to spare the verifier a second path. */
static __always_inline __u64 is_zero(__u64 word)
{
	return ~(word | -word) >> 63;
}

/* Returns whether an address is in one of the prefilter's pod networks. */
static __always_inline int in_pod_networks(const struct prefilter *prefilter,
					   const struct address *a)
{
	const __u32 *w = address_words_const(a);
	__u64 first, last, among = 0;

	if (address_is_v4(a)) {
		for (int i = 0; i < PREFILTER_PODS; i++)
			among |= is_zero((w[3] & prefilter->pods4[i].mask) ^
					 prefilter->pods4[i].value);
		return among;
	}
	first = (__u64)w[1] << 32 | w[0];
	last = (__u64)w[3] << 32 | w[2];
	for (int i = 0; i < PREFILTER_PODS; i++) {
		const struct prefilter_network6 *n = &prefilter->pods6[i];

		among |= is_zero(((first & n->mask[0]) ^ n->value[0]) |
				 ((last & n->mask[1]) ^ n->value[1]));
	}
	return among;
}

static __always_inline int prefilter_has_all_pods(const struct prefilter *prefilter)
{
	return *(const volatile __u32 *)&prefilter->pods_complete;
}

/* Looks up the class in `networks`. The key is in the scratch area: the stack of the callers is
 * nearly full. */
static __always_inline enum source_class class_lookup(const struct address *source)
{
	struct scratch *w = scratch_get();
	enum network *network;

	if (!w)
		return FROM_OUTSIDE;
	w->keys.network.prefixlen = 128;
	w->keys.network.address = *source;
	network = bpf_map_lookup_elem(&networks, &w->keys.network);
	return network && *network == NETWORK_POD ? FROM_POD : FROM_OUTSIDE;
}

/* Returns the class of a client. Looks it up only if the prefilter does not have all pod networks:
 * a lookup costs more than some comparisons. Global function: the verifier checks it once. */
__noinline enum source_class class_of(const struct address *source)
{
	__u32 zero = 0;
	const struct prefilter *prefilter = bpf_map_lookup_elem(&prefilters, &zero);

	if (!source)
		return FROM_OUTSIDE;
	if (!prefilter || !prefilter_has_all_pods(prefilter))
		return class_lookup(source);
	return in_pod_networks(prefilter, source) ? FROM_POD : FROM_OUTSIDE;
}

static __always_inline void explain_choice(const struct frontend *frontend, enum source_class class)
{
	struct explanation *e = explanation_get();

	if (!e)
		return;
	e->frontend = frontend->key;
	e->class = class;
}
