/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who asks, and what of the tables decides. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge_tables.h"
#include "tables.h"

/* Where a client is. */
static __always_inline enum source_class class_of(const struct address *source)
{
	struct network_key key = {.prefixlen = 128, .address = *source};
	enum network *network = bpf_map_lookup_elem(&networks, &key);

	return network && *network == NETWORK_POD ? FROM_POD : FROM_OUTSIDE;
}

static __always_inline void explain_choice(const struct frontend *frontend, enum source_class class)
{
	struct explanation *e = explanation_get();

	if (!e)
		return;
	e->frontend = frontend->key;
	e->class = class;
}
