/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tunnels in external mode (collect metadata), whose key and outer addresses come with each packet:
 * on receipt from the outer header, for transmission from the route. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "offload/types.h"

/* Flags of a tunnel's metadata (linux/if_tunnel.h), in network byte order. */
#define TUNNEL_CSUM	     0x0001
#define TUNNEL_DONT_FRAGMENT 0x0100
#define TUNNEL_OPTIONS	     0xf800 /* of Geneve, VXLAN, ERSPAN and GTP */

/* Reads the metadata of a packet. Returns whether there is any. */
static __always_inline int tunnel_read(struct __sk_buff *ctx, struct bpf_tunnel_key *key,
				       __u64 flags, int *is_v6)
{
	__builtin_memset(key, 0, sizeof(*key));
	*is_v6 = 0;
	if (!bpf_skb_get_tunnel_key(ctx, key, sizeof(*key), flags))
		return 1;
	*is_v6 = 1;
	return !bpf_skb_get_tunnel_key(ctx, key, sizeof(*key), flags | BPF_F_TUNINFO_IPV6);
}

/* Returns the key by which a packet has arrived, plus 1; 0 if there is none. */
static __always_inline __u32 tunnel_arrived(struct __sk_buff *ctx)
{
	struct bpf_tunnel_key key;
	int is_v6;

	return tunnel_read(ctx, &key, 0, &is_v6) ? key.tunnel_id + 1 : 0;
}

/* Learns the outer header of a packet that leaves. For transmission the kernel's "remote" and
 * "local" are exchanged. Returns whether it can be set for other packets. */
static __always_inline int tunnel_learn(struct __sk_buff *ctx, struct offload_tunnel *t)
{
	struct bpf_tunnel_key key;
	__u16 flags = 0;
	int is_v6;

	if (tunnel_read(ctx, &key, BPF_F_TUNINFO_FLAGS, &is_v6))
		flags = bpf_ntohs(key.tunnel_flags);
	else if (!tunnel_read(ctx, &key, 0, &is_v6)) /* Linux before 6.0 */
		return 0;
	if (flags & TUNNEL_OPTIONS)
		return 0;
	t->id = key.tunnel_id;
	__builtin_memcpy(t->remote, key.local_ipv6, sizeof(t->remote));
	__builtin_memcpy(t->local, key.remote_ipv6, sizeof(t->local));
	t->label = key.tunnel_label;
	t->tos = key.tunnel_tos;
	t->ttl = key.tunnel_ttl;
	t->is_v6 = is_v6;
	if (flags & TUNNEL_CSUM)
		t->flags |= OFFLOAD_TUNNEL_CHECKSUM;
	if (flags & TUNNEL_DONT_FRAGMENT)
		t->flags |= OFFLOAD_TUNNEL_DONT_FRAGMENT;
	return 1;
}

/* Sets the outer header of a packet. Returns 0 on success. */
static __always_inline int tunnel_set(struct __sk_buff *ctx, const struct offload_tunnel *t)
{
	struct bpf_tunnel_key key = {};
	__u64 flags = 0;

	key.tunnel_id = t->id;
	__builtin_memcpy(key.remote_ipv6, t->remote, sizeof(t->remote));
	__builtin_memcpy(key.local_ipv6, t->local, sizeof(t->local));
	key.tunnel_label = t->label;
	key.tunnel_tos = t->tos;
	key.tunnel_ttl = t->ttl;
	if (t->is_v6)
		flags |= BPF_F_TUNINFO_IPV6;
	if (!(t->flags & OFFLOAD_TUNNEL_CHECKSUM))
		flags |= BPF_F_ZERO_CSUM_TX;
	if (t->flags & OFFLOAD_TUNNEL_DONT_FRAGMENT)
		flags |= BPF_F_DONT_FRAGMENT;
	return bpf_skb_set_tunnel_key(ctx, &key, sizeof(key), flags);
}
