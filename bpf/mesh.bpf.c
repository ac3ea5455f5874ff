// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The sidecar shortcut at the cgroup of a pod: connections of applications go to the proxy beside
 * them, as with netfilter's REDIRECT, and no packet needs translation.
 *
 *   connect4, connect6           redirect to the proxy, store the destination
 *   sendmsg4, sendmsg6           the same for datagrams to name servers
 *   getpeername4, getpeername6,
 *   recvmsg4, recvmsg6           return the destination
 *   sockops                      give the destination to the proxy's socket; find its listeners
 *   getsockopt                   SO_ORIGINAL_DST
 *   setsockopt                   no TLS in the kernel for sockets whose messages skip TCP
 *   sk_msg                       messages skip TCP (mesh/sockmap.h)
 *   tcp_rcv_space_adjust         who reads them, and how (mesh/reader.h)
 *   unread                       whether a reader has left messages in its queue
 *
 * The kernel runs the programs of a cgroup before those of its ancestors. So the proxy is told the
 * address of a Service, and Beeline's Service programs translate the proxy's own connections. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mesh/close.h"
#include "mesh/origin.h"
#include "mesh/outbound.h"

/* Keeps the type in the BTF for the agent: no variable has it. */
const enum mesh_direction *unused_mesh_direction __attribute__((unused));
const enum mesh_size *unused_mesh_size __attribute__((unused));
const enum mesh_rule *unused_mesh_rule __attribute__((unused));
const enum mesh_pod_kind *unused_mesh_pod_kind __attribute__((unused));
const enum mesh_pod_flags *unused_mesh_pod_flags __attribute__((unused));

SEC("cgroup/connect4")
int beeline_mesh_connect4(struct bpf_sock_addr *ctx)
{
	struct address a;
	__be16 port = ctx->user_port;
	int proceed;

	if (ctx->protocol != MESH_TCP && ctx->protocol != MESH_UDP)
		return MESH_PROCEED;
	address_from_v4(&a, ctx->user_ip4);
	proceed = mesh_connect(ctx, &a, &port);
	if (proceed == MESH_PROCEED && port) {
		ctx->user_ip4 = address_to_v4(&a);
		ctx->user_port = port;
	}
	return proceed;
}

static __always_inline void mesh_address6(const struct bpf_sock_addr *ctx, struct address *a)
{
	__u32 *words = address_words(a);

	words[0] = ctx->user_ip6[0];
	words[1] = ctx->user_ip6[1];
	words[2] = ctx->user_ip6[2];
	words[3] = ctx->user_ip6[3];
}

static __always_inline void mesh_write6(struct bpf_sock_addr *ctx, const struct address *a,
					__be16 port)
{
	const __u32 *words = address_words_const(a);

	ctx->user_ip6[0] = words[0];
	ctx->user_ip6[1] = words[1];
	ctx->user_ip6[2] = words[2];
	ctx->user_ip6[3] = words[3];
	ctx->user_port = port;
}

SEC("cgroup/connect6")
int beeline_mesh_connect6(struct bpf_sock_addr *ctx)
{
	struct address a;
	__be16 port = ctx->user_port;
	int proceed;

	if (ctx->protocol != MESH_TCP && ctx->protocol != MESH_UDP)
		return MESH_PROCEED;
	mesh_address6(ctx, &a);
	proceed = mesh_connect(ctx, &a, &port);
	if (proceed == MESH_PROCEED && port)
		mesh_write6(ctx, &a, port);
	return proceed;
}

SEC("cgroup/sendmsg4")
int beeline_mesh_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct address a;
	__be16 port = ctx->user_port;
	int proceed;

	address_from_v4(&a, ctx->user_ip4);
	proceed = mesh_send(ctx, &a, &port);
	if (proceed == MESH_PROCEED && port) {
		ctx->user_ip4 = address_to_v4(&a);
		ctx->user_port = port;
	}
	return proceed;
}

SEC("cgroup/sendmsg6")
int beeline_mesh_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct address a;
	__be16 port = ctx->user_port;
	int proceed;

	mesh_address6(ctx, &a);
	proceed = mesh_send(ctx, &a, &port);
	if (proceed == MESH_PROCEED && port)
		mesh_write6(ctx, &a, port);
	return proceed;
}

/* Of getpeername() and recvmsg(): the kernel accepts no other value. */
static __always_inline int mesh_answer_peer4(struct bpf_sock_addr *ctx)
{
	struct mesh_origin *origin;
	struct address a;

	address_from_v4(&a, ctx->user_ip4);
	origin = mesh_peer(ctx, &a, ctx->user_port);
	if (origin) {
		ctx->user_ip4 = address_to_v4(&origin->address);
		ctx->user_port = origin->port;
	}
	return MESH_PROCEED;
}

static __always_inline int mesh_answer_peer6(struct bpf_sock_addr *ctx)
{
	struct mesh_origin *origin;
	struct address a;

	mesh_address6(ctx, &a);
	origin = mesh_peer(ctx, &a, ctx->user_port);
	if (origin)
		mesh_write6(ctx, &origin->address, origin->port);
	return MESH_PROCEED;
}

SEC("cgroup/getpeername4")
int beeline_mesh_getpeername4(struct bpf_sock_addr *ctx)
{
	return mesh_answer_peer4(ctx);
}

SEC("cgroup/getpeername6")
int beeline_mesh_getpeername6(struct bpf_sock_addr *ctx)
{
	return mesh_answer_peer6(ctx);
}

SEC("cgroup/recvmsg4")
int beeline_mesh_recvmsg4(struct bpf_sock_addr *ctx)
{
	return mesh_answer_peer4(ctx);
}

SEC("cgroup/recvmsg6")
int beeline_mesh_recvmsg6(struct bpf_sock_addr *ctx)
{
	return mesh_answer_peer6(ctx);
}

/* It never writes `reply`, which other programs may have set, and keeps their flags. */
SEC("sockops")
int beeline_mesh_sockops(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		mesh_listens(ctx);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		mesh_connects(ctx, sk);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		mesh_connected(ctx, sk);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		mesh_accepts(ctx, sk);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == MESH_TCP_CLOSE)
			mesh_closes(ctx);
		break;
	}
	return 1;
}

SEC("sk_msg")
int beeline_mesh_message(struct sk_msg_md *msg)
{
	return mesh_message(msg);
}

SEC("cgroup/bind4")
int beeline_mesh_bind4(struct bpf_sock_addr *ctx)
{
	return mesh_may_bind(ctx);
}

SEC("cgroup/bind6")
int beeline_mesh_bind6(struct bpf_sock_addr *ctx)
{
	return mesh_may_bind(ctx);
}

SEC("cgroup/sock_release")
int beeline_mesh_release(struct bpf_sock *sk)
{
	mesh_released(sk);
	return 1;
}

/* At egress of the device `lo` of a pod. */
SEC("tc")
int beeline_mesh_loopback(struct __sk_buff *skb)
{
	mesh_resets(skb);
	return TC_ACT_UNSPEC;
}

/* Leaves what TCP has received to the socket that it was sent to, in its queue of messages. */
SEC("sk_skb")
int beeline_mesh_receive(struct __sk_buff *skb)
{
	return SK_PASS;
}

SEC("tp_btf/tcp_rcv_space_adjust")
int beeline_mesh_read(__u64 *ctx)
{
	mesh_reads_tcp((struct sock *)ctx[0]);
	return 0;
}

/* Run by the agent. Returns whether messages wait in a queue. */
SEC("syscall")
int beeline_mesh_unread(struct mesh_unread *of)
{
	const struct tcp_sock *tcp = (void *)of->sock;

	return mesh_cookie_of(tcp) == of->cookie && mesh_has_messages(tcp);
}

SEC("cgroup/getsockopt")
int beeline_mesh_getsockopt(struct bpf_sockopt *ctx)
{
	mesh_getsockopt(ctx);
	return 1;
}

SEC("cgroup/setsockopt")
int beeline_mesh_setsockopt(struct bpf_sockopt *ctx)
{
	return mesh_setsockopt(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
