/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Properties of a socket: addresses, peer, and client identity. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/frontend.h"
#include "lb/types.h"

/* Sets `a` to the address that a socket is bound to; unspecified if it is not bound. */
static __always_inline void socket_address(const struct bpf_sock *sk, struct address *a)
{
	__u32 v6[4] = {sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]};
	__u32 v4 = sk->src_ip4;

	barrier();
	address_of_socket(a, sk->family, v4, v6);
}

/* Returns whether a socket is currently connected to an address and port. */
static __always_inline int connected_to(const struct bpf_sock *sk, const struct address *address,
					__be16 port)
{
	__u32 v6[4] = {sk->dst_ip6[0], sk->dst_ip6[1], sk->dst_ip6[2], sk->dst_ip6[3]};
	__u32 v4 = sk->dst_ip4;
	struct address peer;

	barrier();
	address_of_socket(&peer, sk->family, v4, v6);
	return sk->dst_port == port && address_equal(&peer, address);
}

/* Replaces the unspecified address, which means this host, by the address that the socket is bound
 * to, or loopback (ip_route_output_key, tcp_v6_connect, udpv6_sendmsg). */
static __always_inline void destination_resolve(struct destination *d, const struct address *source)
{
	__u32 *words = address_words(&d->address);

	if (!address_is_unspecified(&d->address))
		return;
	if (!address_is_v4(&d->address)) {
		if (address_is_v4(source))
			address_from_v4(&d->address, bpf_htonl(INADDR_LOOPBACK));
		else
			words[3] = bpf_htonl(1);
	} else if (address_is_v4(source) && !address_is_unspecified(source)) {
		d->address = *source;
	} else {
		address_from_v4(&d->address, bpf_htonl(INADDR_LOOPBACK));
	}
}

/* Sets the client identity of a socket. A network namespace is one client per family, like a pod
 * with an address of each: a backend of one family is in no set of the other, and would end the
 * affinity there. */
static __always_inline void client_of_namespace(__u64 netns_cookie, int is_v4,
						struct address *client)
{
	__u32 *words = address_words(client);

	words[0] = 0;
	words[1] = 0;
	words[2] = netns_cookie >> 32;
	words[3] = (__u32)netns_cookie;
	client->bytes[0] = 0xff;
	client->bytes[1] = is_v4 ? 4 : 6;
}
