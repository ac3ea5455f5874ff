/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The prefilter's bits. They show, before any lookup, that a packet belongs neither to a Service
 * nor to a flow, or that a socket's destination is no Service. That is so for most other traffic.
 * There are bits for
 *
 *   - the address of each frontend, and the address with its port
 *   - the destination address of each conntrack entry (`conntrack`, `unreplied`), and the
 *     address with the port
 *   - the source, instead of the destination, of entries for replies of this node's backends:
 *     these are looked up at egress, and their destinations are arbitrary clients
 *
 * It is a Bloom filter: a false positive costs a lookup in the tables. A false negative would lose
 * packets: a bit is set before the object that needs it, and cleared only by the agent. The agent
 * builds a new set of bits from all objects, while programs set bits in both sets, and then
 * switches `state` (docs/develop/prefilter.md). The prefilter of a new table is off: everything is
 * looked up. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "filter/maps.h"
#include "filter/types.h"
#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"

#define PREFILTER_MULTIPLIER	   ((__u64)PREFILTER_FIRST_HIGH << 32 | PREFILTER_FIRST_LOW)
#define PREFILTER_OTHER_MULTIPLIER ((__u64)PREFILTER_LAST_HIGH << 32 | PREFILTER_LAST_LOW)

/* Hash of an address in two words, and of an address and port. The agent computes the same
 * (bpf.Prefilter). A change of these functions is a change of the table layout. */
static __always_inline __u64 prefilter_address(__u64 first, __u64 last)
{
	return (first * PREFILTER_MULTIPLIER ^ last) * PREFILTER_OTHER_MULTIPLIER;
}

static __always_inline __u64 prefilter_endpoint(__u64 address, __be16 port)
{
	return (address + port + 1) * PREFILTER_MULTIPLIER;
}

/* Hash of an address as a source. */
static __always_inline __u64 prefilter_source(__u64 address)
{
	return ~address * PREFILTER_OTHER_MULTIPLIER;
}

static __always_inline __u64 prefilter_address_of(const struct address *a)
{
	const __u32 *w = address_words_const(a);

	return prefilter_address((__u64)w[1] << 32 | w[0], (__u64)w[3] << 32 | w[2]);
}

static __always_inline int prefilter_has(const __u64 *bits, __u64 hash)
{
	return bits[hash >> PREFILTER_WORD_SHIFT] >> (hash >> PREFILTER_BIT_SHIFT & 63) & 1;
}

/* Returns whether the bits of an address are set, and those of the port or of every port. */
static __always_inline int prefilter_has_destination(const __u64 *bits, __u64 address, __be16 port)
{
	return prefilter_has(bits, address) &&
	       (prefilter_has(bits, prefilter_endpoint(address, port)) ||
		prefilter_has(bits, prefilter_endpoint(address, 0)));
}

static __always_inline int in_networks4(const struct prefilter_network4 *networks, __be32 a)
{
	for (int i = 0; i < PREFILTER_NETWORKS; i++)
		if ((a & networks[i].mask) == networks[i].value)
			return 1;
	return 0;
}

static __always_inline int in_networks6(const struct prefilter_network6 *networks, const __u64 *a)
{
	for (int i = 0; i < PREFILTER_NETWORKS; i++)
		if ((a[0] & networks[i].mask[0]) == networks[i].value[0] &&
		    (a[1] & networks[i].mask[1]) == networks[i].value[1])
			return 1;
	return 0;
}

/* Returns the active set of bits, or 0. The address is computed from the state and not selected by
 * a branch: arm64 orders two loads by the former, so that it reads no bits from before the switch.
 */
static __always_inline const __u64 *prefilter_bits(const struct prefilter *prefilter)
{
	__u32 set = *(const volatile __u32 *)&prefilter->state - PREFILTER_FIRST;

	return set < 2 ? &prefilter->bits[set * PREFILTER_WORDS] : 0;
}

/* Returns whether an address is in a ServiceCIDR. */
static __always_inline int prefilter_in_services(const struct prefilter *prefilter,
						 const struct address *a)
{
	const __u32 *w = address_words_const(a);
	__u64 words[2];

	if (address_is_v4(a))
		return in_networks4(prefilter->services4, w[3]);
	__builtin_memcpy(words, w, sizeof(words));
	return in_networks6(prefilter->services6, words);
}

/* Returns whether a Service may have the address with the port, or with every port. 0: there is no
 * such Service, and the address is in no ServiceCIDR. */
static __always_inline int prefilter_may_match(const struct address *a, __be16 port)
{
	__u64 hash = prefilter_address_of(a);
	__u32 zero = 0;
	const struct prefilter *prefilter = bpf_map_lookup_elem(&prefilters, &zero);
	const __u64 *bits = prefilter ? prefilter_bits(prefilter) : 0;

	if (dry_run || !bits)
		return 1;
	return prefilter_has_destination(bits, hash, port) || prefilter_in_services(prefilter, a);
}
