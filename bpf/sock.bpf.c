// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The socket shortcut: when a program connects to a Service or sends a datagram to it, the
 * Service's address is replaced by a backend's, and no packet needs translation.
 *
 *   connect4, connect6           look up, decide, select, rewrite: TCP, UDP
 *   sendmsg4, sendmsg6           the same for each datagram of an unconnected socket: its
 *                                datagrams to one Service go to one backend while that serves
 *   recvmsg4, recvmsg6           restore the Service's address
 *   getpeername4, getpeername6   likewise
 *
 * An AF_INET6 socket with a destination ::ffff:a.b.c.d passes connect6, sendmsg4 and recvmsg6
 * and needs no special handling: tables and records hold IPv4 addresses in this form.
 *
 * Errors are those that connect(2) and sendto(2) document, because clients in the kernel (NFS,
 * CIFS) pass these hooks, too. SCTP and UDP-Lite are passed; SCTP is served at the edge
 * (edge/ingress.h). */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "sock/connect.h"
#include "sock/udp.h"
#include "lb/types.h"

/* Keeps the type in the BTF for the agent: no variable has it. */
const enum frontend_flag *unused_frontend_flag __attribute__((unused));
const enum socket_mark *unused_socket_mark __attribute__((unused));
const enum dsr *unused_dsr __attribute__((unused));
const enum history_word *unused_history_word __attribute__((unused));
const enum set_table_size *unused_set_table_size __attribute__((unused));
const enum set_rank *unused_set_rank __attribute__((unused));
const enum set_mix *unused_set_mix __attribute__((unused));

static __always_inline void destination_read4(const struct bpf_sock_addr *ctx,
					      struct destination *d)
{
	address_from_v4(&d->address, ctx->user_ip4);
	d->port = ctx->user_port;
}

static __always_inline void destination_write4(struct bpf_sock_addr *ctx,
					       const struct destination *d)
{
	ctx->user_ip4 = address_to_v4(&d->address);
	ctx->user_port = d->port;
}

static __always_inline void destination_read6(const struct bpf_sock_addr *ctx,
					      struct destination *d)
{
	__u32 *words = address_words(&d->address);

	words[0] = ctx->user_ip6[0];
	words[1] = ctx->user_ip6[1];
	words[2] = ctx->user_ip6[2];
	words[3] = ctx->user_ip6[3];
	d->port = ctx->user_port;
}

static __always_inline void destination_write6(struct bpf_sock_addr *ctx,
					       const struct destination *d)
{
	const __u32 *words = address_words_const(&d->address);

	ctx->user_ip6[0] = words[0];
	ctx->user_ip6[1] = words[1];
	ctx->user_ip6[2] = words[2];
	ctx->user_ip6[3] = words[3];
	ctx->user_port = d->port;
}

SEC("cgroup/connect4")
int beeline_connect4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read4(ctx, &d);
	return connect_hook(ctx, &d, destination_write4);
}

SEC("cgroup/connect6")
int beeline_connect6(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read6(ctx, &d);
	return connect_hook(ctx, &d, destination_write6);
}

SEC("cgroup/sendmsg4")
int beeline_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct address source;
	struct destination d;

	destination_read4(ctx, &d);
	address_from_v4(&source, ctx->msg_src_ip4); /* of IP_PKTINFO, if set */
	return sendmsg_hook(ctx, &d, &source, destination_write4);
}

SEC("cgroup/sendmsg6")
int beeline_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct address source;
	__u32 *words = address_words(&source);
	struct destination d;

	destination_read6(ctx, &d);
	words[0] = ctx->msg_src_ip6[0];
	words[1] = ctx->msg_src_ip6[1];
	words[2] = ctx->msg_src_ip6[2];
	words[3] = ctx->msg_src_ip6[3];
	return sendmsg_hook(ctx, &d, &source, destination_write6);
}

SEC("cgroup/recvmsg4")
int beeline_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read4(ctx, &d);
	return recvmsg_hook(ctx, &d, destination_write4);
}

SEC("cgroup/recvmsg6")
int beeline_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read6(ctx, &d);
	return recvmsg_hook(ctx, &d, destination_write6);
}

SEC("cgroup/getpeername4")
int beeline_getpeername4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read4(ctx, &d);
	return getpeername_hook(ctx, &d, destination_write4);
}

SEC("cgroup/getpeername6")
int beeline_getpeername6(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read6(ctx, &d);
	return getpeername_hook(ctx, &d, destination_write6);
}

char _license[] SEC("license") = "Dual BSD/GPL";
