/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that the kernel knows: of flows in its conntrack, and to connected sockets of the node.
 * Ports of the node are shared: netfilter masquerades from ports that are NodePorts or HostPorts,
 * and sockets bind them. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "netfilter/conntrack.h"
#include "netfilter/own_entry.h"
#include "packet/tuple.h"
#include "packet/types.h"

enum kernel_owner {
	KERNEL_NONE,
	KERNEL_FLOW,   /* a flow in conntrack */
	KERNEL_SOCKET, /* a socket that is connected to the sender */
};

/* Returns whether the original direction of a flow belongs to the kernel: netfilter translates its
 * destination, or it is a TCP connection that somebody has answered. One that nobody has answered
 * may have been sent to the stack while it was served by nobody. */
static __always_inline int is_kernels_original(const struct nf_conn *ct, __u8 protocol)
{
	unsigned long status = BPF_CORE_READ(ct, status);
	__u8 state;

	if (status & IPS_DST_NAT)
		return 1;
	if (protocol != IPPROTO_TCP || !(status & IPS_SEEN_REPLY))
		return 0;
	state = BPF_CORE_READ(ct, proto.tcp.state);
	return state >= TCP_CONNTRACK_SYN_RECV && state <= TCP_CONNTRACK_TIME_WAIT;
}

/* Returns whether a packet belongs to a flow of the kernel's conntrack. */
static __always_inline int is_kernels_flow(struct context *ctx, const struct tuple *t,
					   int only_reply)
{
	struct nf_conn *ct;
	__u8 direction;
	int is;

	if (!kernel_conntrack)
		return 0;
	ct = netfilter_flow(ctx, t, &direction);
	if (!ct)
		return 0;
	is = direction || (!only_reply && is_kernels_original(ct, t->protocol));
	bpf_ct_release(ct);
	return is;
}

/* Returns whether the kernel's conntrack has a flow whose answers have this tuple, other than by an
 * entry of ours. Global function: the verifier checks it once. */
__noinline int kernel_has_port(struct context *ctx, const struct tuple *answer)
{
	struct nf_conn *ct;
	__u8 direction;
	int has;

	if (!answer || !kernel_conntrack)
		return 0;
	ct = netfilter_flow(ctx, answer, &direction);
	if (!ct)
		return 0;
	has = !is_own_entry(ct);
	bpf_ct_release(ct);
	return has;
}

/* Returns whether the node has a TCP socket with this remote end, in any state: TIME_WAIT and the
 * handshake at a listener included. */
static __always_inline int has_tcp_socket(struct context *ctx, struct bpf_sock_tuple *key,
					  __u32 length)
{
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, key, length, BPF_F_CURRENT_NETNS, 0);
	int has;

	if (!sk)
		return 0;
	has = sk->state != BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return has;
}

/* Returns whether the node has a UDP socket that is connected to the sender. */
static __always_inline int has_udp_socket(struct context *ctx, struct bpf_sock_tuple *key,
					  __u32 length)
{
	struct bpf_sock *sk = bpf_sk_lookup_udp(ctx, key, length, BPF_F_CURRENT_NETNS, 0);
	int has;

	if (!sk)
		return 0;
	has = sk->state == BPF_TCP_ESTABLISHED;
	bpf_sk_release(sk);
	return has;
}

/* Returns whether a socket of the node is connected to the packet's sender. */
static __always_inline int has_connected_socket(struct context *ctx, const struct tuple *t)
{
	struct bpf_sock_tuple key = {};
	__u32 length = sock_tuple_set(&key, t);

	if (t->protocol == IPPROTO_UDP)
		return length == sizeof(key.ipv4) ? has_udp_socket(ctx, &key, sizeof(key.ipv4))
						  : has_udp_socket(ctx, &key, sizeof(key.ipv6));
	return length == sizeof(key.ipv4) ? has_tcp_socket(ctx, &key, sizeof(key.ipv4))
					  : has_tcp_socket(ctx, &key, sizeof(key.ipv6));
}

/* Returns to whom of the kernel a TCP or UDP packet belongs (enum kernel_owner): to a flow of
 * conntrack in the reply direction, or in the original one if nobody else may take it; or to a
 * connected socket. Never to a listener, an unconnected socket, or because of what a client has
 * sent before. Global function: the verifier checks it once. */
__noinline int kernel_owner(struct context *ctx, const struct tuple *t, int leaving)
{
	if (!t)
		return KERNEL_NONE;
	if (is_kernels_flow(ctx, t, leaving))
		return KERNEL_FLOW;
	/* A packet that leaves the node is for no socket of it. */
	return !leaving && has_connected_socket(ctx, t) ? KERNEL_SOCKET : KERNEL_NONE;
}
