/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Looks up the frontend of a destination. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/maps.h"
#include "lb/types.h"

/* SO_NETNS_COOKIE of the host's network namespace, set by the loader. */
const volatile __u64 host_netns_cookie = 0;

/* The address and port of a peer: the destination of a call, or the source of a datagram. */
struct destination {
	struct address address;
	__be16 port;
};

static __always_inline void destination_set(struct destination *d, const struct address *address,
					    __be16 port)
{
	d->address = *address;
	d->port = port;
}

static __always_inline int destination_is(const struct destination *d,
					  const struct address *address, __be16 port)
{
	return d->port == port && address_equal(&d->address, address);
}

static __always_inline int frontend_key_equal(const struct frontend_key *a,
					      const struct frontend_key *b)
{
	return address_equal(&a->address, &b->address) && a->port == b->port &&
	       a->protocol == b->protocol;
}

/* Looks up the row number of a key. Returns whether there is one. The kernel reuses hash elements
 * for other keys without a grace period, so the number may be another key's. */
static __always_inline int frontend_number(const struct frontend_key *key, __u32 *number)
{
	__u32 *index = bpf_map_lookup_elem(&frontends, key);

	if (!index)
		return 0;
	*number = *(volatile __u32 *)index;
	return 1;
}

/* Repeats a lookup that has found another key's row. Returns the row number, or 0. Copies the key,
 * because before Linux 6.2 a function argument cannot be a map key. Global function: the verifier
 * checks it once. */
__noinline __u32 frontend_retry(const struct frontend_key *asked)
{
	struct frontend_key key;
	struct frontend *row;
	__u32 number;

	if (!asked)
		return 0;
	key = *asked;
	for (int attempt = 0; attempt < 2 && frontend_number(&key, &number); attempt++) {
		row = bpf_map_lookup_elem(&frontend_rows, &number);
		if (row && frontend_key_equal(&row->key, &key))
			return number;
	}
	return 0;
}

/* Returns the row of a key and its number. If the key in the row differs, repeats the lookup, which
 * then finds the element that replaced the one read. */
static __always_inline struct frontend *frontend_numbered(const struct frontend_key *key,
							  __u32 *number)
{
	struct frontend *row;

	if (!frontend_number(key, number))
		return 0;
	row = bpf_map_lookup_elem(&frontend_rows, number);
	if (row && frontend_key_equal(&row->key, key))
		return row;
	*number = frontend_retry(key);
	return *number ? bpf_map_lookup_elem(&frontend_rows, number) : 0;
}

static __always_inline struct frontend *frontend_at(const struct frontend_key *key)
{
	__u32 number;

	return frontend_numbered(key, &number);
}

/* Returns the frontend of a key, else the frontend for all other ports of its address, else 0. */
static __always_inline struct frontend *frontend_lookup(const struct frontend_key *asked)
{
	struct frontend *row = frontend_at(asked);
	struct frontend_key any_port = {.address = asked->address};

	return row ? row : frontend_at(&any_port);
}

/* Returns the frontend of a destination, or 0. All of 127.0.0.0/8 is looked up as 127.0.0.1, unless
 * the frontend is for that address only. */
static __always_inline struct frontend *frontend_of(const struct destination *d, __u8 protocol)
{
	struct frontend_key key = {.address = d->address, .port = d->port, .protocol = protocol};
	struct frontend *frontend = frontend_lookup(&key);

	if (frontend || !address_is_v4(&key.address) || key.address.bytes[12] != 127 ||
	    address_to_v4(&key.address) == bpf_htonl(INADDR_LOOPBACK))
		return frontend;
	address_from_v4(&key.address, bpf_htonl(INADDR_LOOPBACK));
	frontend = frontend_lookup(&key);
	return frontend && !(frontend->flags & FRONTEND_LOOPBACK_EXACT) ? frontend : 0;
}
