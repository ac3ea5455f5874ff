/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Addresses of both families in 16 bytes. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "lb/types.h"

static __always_inline __u32 *address_words(struct address *a)
{
	return (__u32 *)a->bytes;
}

static __always_inline const __u32 *address_words_const(const struct address *a)
{
	return (const __u32 *)a->bytes;
}

/* Maps an IPv4 address in network byte order. */
static __always_inline void address_from_v4(struct address *a, __be32 v4)
{
	__u32 *w = address_words(a);

	w[0] = 0;
	w[1] = 0;
	w[2] = bpf_htonl(0xffff);
	w[3] = v4;
}

/* address_from_v4 and address_put, which copies an address, with two 64-bit stores, as tuple_hash
 * loads them: a load that spans several pending stores stalls. Not for the stack, where the
 * verifier requires aligned words. */
static __always_inline void address_put_v4(struct address *a, __be32 v4)
{
	__u64 *words = (__u64 *)a;

	words[0] = 0;
	words[1] = (__u64)v4 << 32 | bpf_htonl(0xffff);
}

static __always_inline void address_put(struct address *a, const void *from)
{
	__u64 *words = (__u64 *)a;

	words[0] = ((const __u64 *)from)[0];
	words[1] = ((const __u64 *)from)[1];
}

/* address_equal for operands that may be compared as 64-bit words. */
static __always_inline int address_same(const struct address *a, const struct address *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]));
}

static __always_inline __be32 address_to_v4(const struct address *a)
{
	return address_words_const(a)[3];
}

static __always_inline int address_is_v4(const struct address *a)
{
	const __u32 *w = address_words_const(a);

	return w[0] == 0 && w[1] == 0 && w[2] == bpf_htonl(0xffff);
}

static __always_inline int address_equal(const struct address *a, const struct address *b)
{
	const __u32 *x = address_words_const(a), *y = address_words_const(b);

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* 127.0.0.0/8 or ::1 */
static __always_inline int address_is_loopback(const struct address *a)
{
	const __u32 *w = address_words_const(a);

	if (address_is_v4(a))
		return a->bytes[12] == 127;
	return w[0] == 0 && w[1] == 0 && w[2] == 0 && w[3] == bpf_htonl(1);
}

/* 0.0.0.0, ::ffff:0.0.0.0 or :: */
static __always_inline int address_is_unspecified(const struct address *a)
{
	const __u32 *w = address_words_const(a);

	return w[0] == 0 && w[1] == 0 && (w[2] == 0 || w[2] == bpf_htonl(0xffff)) && w[3] == 0;
}

/* Returns whether no packet on a network may have this source: loopback, multicast, reserved, or
 * "this network" (RFC 6890, RFC 4291 section 2.7). */
static __always_inline int address_is_no_source(const struct address *a)
{
	if (address_is_v4(a))
		return a->bytes[12] == 0 || a->bytes[12] == 127 || a->bytes[12] >= 224;
	return a->bytes[0] == 0xff || address_is_loopback(a) || address_is_unspecified(a);
}

/* Returns whether a packet with this source may not leave its link (RFC 4291 section 2.5.6). The
 * stack forwards those of IPv4 (169.254.0.0/16). */
static __always_inline int address_is_link_local(const struct address *a)
{
	return a->bytes[0] == 0xfe && (a->bytes[1] & 0xc0) == 0x80;
}

#define AF_UNSPEC 0
#define AF_INET	  2
#define AF_INET6  10

/* Sets an address from both forms of a socket's field: the verifier requires loads at fixed
 * offsets, outside branches. */
static __always_inline void address_of_socket(struct address *a, __u32 family, __be32 v4,
					      const __u32 v6[4])
{
	__u32 *words = address_words(a);
	int is_v4 = family == AF_INET;

	words[0] = is_v4 ? 0 : v6[0];
	words[1] = is_v4 ? 0 : v6[1];
	words[2] = is_v4 ? bpf_htonl(0xffff) : v6[2];
	words[3] = is_v4 ? v4 : v6[3];
}
