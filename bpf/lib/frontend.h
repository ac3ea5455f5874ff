/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From an address to the frontend that has it. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "tables.h"

/* SO_NETNS_COOKIE of the host's network namespace, set by the loader. */
const volatile __u64 host_netns_cookie = 0;

/* Where a call goes to, or what comes from. */
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

/* The number of a key's row. A hash element is used again for another key without a grace
 * period, so it can be another key's. Returns whether there is one. */
static __always_inline int frontend_number(const struct frontend_key *key, __u32 *number)
{
	__u32 *index = bpf_map_lookup_elem(&frontends, key);

	if (!index)
		return 0;
	*number = *(volatile __u32 *)index;
	return 1;
}

/* Looks again for a key that had another's row. Not static: the verifier looks at it once. Returns
 * the number of the row, or 0. The key is copied, since until Linux 6.2 no argument can be a
 * map's key. */
__noinline __u32 frontend_again(const struct frontend_key *asked)
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

/* The key in the row tells whether it is the right one; looking again finds the element
 * that has replaced the one that was read. Returns the row, and its number. */
static __always_inline struct frontend *frontend_numbered(const struct frontend_key *key,
							  __u32 *number)
{
	struct frontend *row;

	if (!frontend_number(key, number))
		return 0;
	row = bpf_map_lookup_elem(&frontend_rows, number);
	if (row && frontend_key_equal(&row->key, key))
		return row;
	*number = frontend_again(key);
	return *number ? bpf_map_lookup_elem(&frontend_rows, number) : 0;
}

static __always_inline struct frontend *frontend_at(const struct frontend_key *key)
{
	__u32 number;

	return frontend_numbered(key, &number);
}

/* The frontend for what a client asks for, or the one that stands for all the
 * other ports of its address, or none. */
static __always_inline struct frontend *frontend_lookup(const struct frontend_key *asked)
{
	struct frontend *row = frontend_at(asked);
	struct frontend_key any_port = {.address = asked->address};

	return row ? row : frontend_at(&any_port);
}

/* The frontend for a destination, or none. 127.0.0.0/8 is one address to what is
 * served on all of it: the tables hold 127.0.0.1. */
static __always_inline struct frontend *frontend_of(const struct destination *d, __u8 protocol)
{
	struct frontend_key key = {.address = d->address, .port = d->port, .protocol = protocol};
	struct frontend *frontend = frontend_lookup(&key);

	if (frontend || !address_is_v4(&key.address) || key.address.bytes[12] != 127 ||
	    address_to_v4(&key.address) == bpf_htonl(INADDR_LOOPBACK))
		return frontend;
	address_from_v4(&key.address, bpf_htonl(INADDR_LOOPBACK));
	frontend = frontend_lookup(&key);
	return frontend && !(frontend->flags & FRONTEND_ONE_ADDRESS) ? frontend : 0;
}
