/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A socket that is closed with data unread sends a RST (RFC 2525 section 2.17), by which its peer
 * learns that the data is lost. The kernel does not look for data in the queue of messages, and
 * sends a FIN. So the FIN becomes a RST on its way over the device `lo`. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"
#include "mesh/reader.h"

/* The last descriptor of a socket is closed. */
static __always_inline void mesh_released(struct bpf_sock *sk)
{
	struct mesh_socket_state *state = bpf_sk_storage_get(&mesh_socket_states, sk, 0, 0);

	if (state && state->joined && mesh_has_messages((void *)state->sock))
		state->unread = 1;
}

/* Returns the offset of the TCP header of a frame on `lo`; 0: it has none. */
static __always_inline __u32 mesh_tcp_offset(struct __sk_buff *skb)
{
	__u8 first, protocol;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &first, sizeof(first)) ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, protocol), &protocol,
				       sizeof(protocol)) ||
		    protocol != IPPROTO_TCP)
			return 0;
		return ETH_HLEN + (first & 15) * 4;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, nexthdr), &protocol,
			       sizeof(protocol)) ||
	    protocol != IPPROTO_TCP)
		return 0;
	return ETH_HLEN + sizeof(struct ipv6hdr);
}

/* The word of a TCP header with the flags, in host byte order. */
#define MESH_FLAGS_OFFSET 12
enum mesh_tcp_flags { MESH_FIN = 1, MESH_RST = 4, MESH_PSH = 8 };

/* A socket sends by `lo`. What it sends again stays as it is: the peer is closed then, and answers
 * by a RST. */
static __always_inline void mesh_resets(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : 0;
	__be16 before, after;
	struct mesh_socket_state *state;
	__u32 tcp;

	state = sk ? bpf_sk_storage_get(&mesh_socket_states, sk, 0, 0) : 0;
	if (!state || !state->unread)
		return;
	tcp = mesh_tcp_offset(skb);
	if (!tcp || bpf_skb_load_bytes(skb, tcp + MESH_FLAGS_OFFSET, &before, sizeof(before)) ||
	    !(before & bpf_htons(MESH_FIN)))
		return;
	after = (before & ~bpf_htons(MESH_FIN | MESH_PSH)) | bpf_htons(MESH_RST);
	if (bpf_l4_csum_replace(skb, tcp + offsetof(struct tcphdr, check), before, after,
				sizeof(before)) ||
	    bpf_skb_store_bytes(skb, tcp + MESH_FLAGS_OFFSET, &after, sizeof(after), 0))
		return;
	state->unread = 0;
}
