/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How the proxy learns the destination of a redirected connection: getsockopt() of SO_ORIGINAL_DST
 * and IP6T_SO_ORIGINAL_DST, as with netfilter's REDIRECT.
 *
 * The source port of a connection is known only after connect4 and connect6, so the destination
 * goes from the client's socket through `mesh_handshakes` to the accepted one. An entry there lasts
 * until the proxy's socket exists or the client's is closed. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/devices.h"
#include "mesh/policy.h"
#include "mesh/proxy.h"
#include "mesh/sockmap.h"

/* Linux: include/net/tcp_states.h */
enum { MESH_TCP_CLOSE = 7 };

/* Linux: include/uapi/linux/netfilter_ipv4.h, netfilter_ipv6/ip6_tables.h */
enum { MESH_SOL_IP = 0, MESH_SOL_IPV6 = 41, MESH_SO_ORIGINAL_DST = 80 };

/* An AF_INET6 socket with an IPv4 peer has IPv4-mapped addresses. Volatile, because the verifier
 * requires loads at fixed offsets of the context, outside branches. */
static __always_inline void mesh_tuple_of(const volatile struct bpf_sock_ops *ctx,
					  struct mesh_tuple *t)
{
	__u32 local6[4] = {ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2],
			   ctx->local_ip6[3]};
	__u32 remote6[4] = {ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2],
			    ctx->remote_ip6[3]};
	__u32 family = ctx->family, local4 = ctx->local_ip4, remote4 = ctx->remote_ip4;

	address_of_socket(&t->local, family, local4, local6);
	address_of_socket(&t->remote, family, remote4, remote6);
	t->netns = bpf_get_netns_cookie((void *)ctx);
	t->local_port = ctx->local_port;
	t->remote_port = bpf_ntohl(ctx->remote_port);
	t->reserved = 0;
}

/* Returns whether both ends of a connection are in this network namespace. */
static __always_inline int mesh_is_local(const struct mesh_tuple *t)
{
	return mesh_is_local_source(&t->local) || mesh_is_local_source(&t->remote) ||
	       address_equal(&t->local, &t->remote);
}

static __always_inline void mesh_tuple_reverse(struct mesh_tuple *t)
{
	struct address local = t->local;
	__u16 port = t->local_port;

	t->local = t->remote;
	t->local_port = t->remote_port;
	t->remote = local;
	t->remote_port = port;
}

static __always_inline int mesh_connecting(const struct mesh_origin *origin)
{
	return origin->end == MESH_CLIENT || origin->end == MESH_PROXY;
}

/* The client's SYN is about to be sent. */
static __always_inline void mesh_connects(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct mesh_origin *origin = bpf_sk_storage_get(&mesh_origins, sk, 0, 0);
	struct mesh_handshake handshake = {};
	struct mesh_tuple tuple;

	if (!origin || !mesh_connecting(origin))
		return;
	mesh_tuple_of(ctx, &tuple);
	if (origin->end == MESH_PROXY && !mesh_is_local(&tuple))
		return;
	handshake.origin = *origin;
	handshake.cookie = bpf_get_socket_cookie(ctx);
	handshake.since = bpf_ktime_get_ns();
	if (mesh_sockmap && mesh_is_local(&tuple))
		handshake.joins = mesh_may_join(sk, &tuple);
	if (bpf_map_update_elem(&mesh_handshakes, &tuple, &handshake, BPF_ANY)) {
		if (origin->end == MESH_CLIENT)
			MESH_COUNT(unnamed);
		return;
	}
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* The handshake has ended at the socket that has connected. */
static __always_inline void mesh_connected(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct mesh_tuple tuple;
	struct mesh_socket_state *state;

	if (!mesh_sockmap)
		return;
	state = bpf_sk_storage_get(&mesh_socket_states, sk, 0, 0);
	if (!state || !state->joins)
		return;
	mesh_tuple_of(ctx, &tuple);
	mesh_join(ctx, sk, state, &tuple);
}

/* A socket is closed. */
static __always_inline void mesh_closes(struct bpf_sock_ops *ctx)
{
	struct mesh_handshake *handshake;
	struct mesh_tuple tuple;

	mesh_tuple_of(ctx, &tuple);
	handshake = bpf_map_lookup_elem(&mesh_handshakes, &tuple);
	if (handshake && handshake->cookie == bpf_get_socket_cookie(ctx))
		bpf_map_delete_elem(&mesh_handshakes, &tuple);
	mesh_leave(ctx, &tuple);
}

static __always_inline void mesh_origin_of_accepted(struct bpf_sock *sk,
						    const struct address *address, __be16 port)
{
	struct mesh_origin *origin =
		bpf_sk_storage_get(&mesh_origins, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!origin) {
		MESH_COUNT(unnamed);
		return;
	}
	origin->address = *address;
	origin->port = port;
	origin->end = MESH_ACCEPTED;
}

static __always_inline void mesh_accepts_local(struct bpf_sock_ops *ctx, struct bpf_sock *sk,
					       struct mesh_tuple *own, int joins)
{
	struct mesh_socket_state *state =
		bpf_sk_storage_get(&mesh_socket_states, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	const struct mesh_program_key *acceptor;

	if (!state)
		return;
	state->port = own->local_port;
	if (!joins)
		return;
	acceptor = mesh_acceptor_at(own->netns, own->local_port);
	if (acceptor)
		state->program = *acceptor;
	mesh_join(ctx, sk, state, own);
}

/* The handshake has ended at a socket that accept() will return. */
static __always_inline void mesh_accepts(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct mesh_tuple own, client;
	struct mesh_handshake *handshake;
	struct mesh_pod pod;
	__u32 rule;
	int joins;

	mesh_tuple_of(ctx, &own);
	if (!mesh_is_local(&own)) {
		/* A socket of the proxy if its listener was chosen by mesh_inbound.bpf.c. Its own
		 * address is then the destination. */
		mesh_pod_of(&pod, own.netns);
		rule = mesh_arrival_rule(sk, &pod);
		if (rule == MESH_INCLUDE ? mesh_reroutes(&pod, &own.local)
					 : rule != MESH_EXCLUDE &&
						   mesh_takes_inbound(&pod, &own.remote, &own.local,
								      own.local_port))
			mesh_origin_of_accepted(sk, &own.local, bpf_htons(own.local_port));
		return;
	}
	client = own;
	mesh_tuple_reverse(&client);
	handshake = bpf_map_lookup_elem(&mesh_handshakes, &client);
	if (!handshake)
		return;
	if (handshake->origin.end == MESH_CLIENT)
		mesh_origin_of_accepted(sk, &handshake->origin.address, handshake->origin.port);
	else if (mesh_is_own(&own.remote, &own.local))
		mesh_origin_of_accepted(sk, &own.local, bpf_htons(own.local_port));
	joins = handshake->joins;
	bpf_map_delete_elem(&mesh_handshakes, &client);
	if (mesh_sockmap)
		mesh_accepts_local(ctx, sk, &own, joins);
}

/* A socket begins to listen. */
static __always_inline void mesh_listens(struct bpf_sock_ops *ctx)
{
	struct mesh_listener_key key = {.netns = bpf_get_netns_cookie(ctx)};

	if (mesh_sockmap)
		mesh_forget_acceptor(key.netns, ctx->local_port);
	if (!mesh_is_proxy_port(ctx->local_port))
		return;
	mesh_note_proxy();
	key.outbound = ctx->local_port == mesh_outbound_port;
	for (__u32 i = 0; i < MESH_LISTENERS; i++) {
		key.place = i; /* Linux 6.1 loses track of what helpers can read */
		if (!bpf_sock_hash_update(ctx, &mesh_listeners, &key, BPF_NOEXIST))
			return;
	}
	if (!key.outbound) /* those of applications reach it by their destination */
		MESH_COUNT(listeners);
}

/* include/uapi/linux/in.h, in6.h */
struct mesh_sockaddr4 {
	__u16 family;
	__be16 port;
	__be32 address;
	__u64 zero;
} __attribute__((packed));

struct mesh_sockaddr6 {
	__u16 family;
	__be16 port;
	__be32 flow;
	__u32 address[4];
	__u32 scope;
} __attribute__((packed));

static __always_inline int mesh_answer4(struct bpf_sockopt *ctx, const struct mesh_origin *origin)
{
	struct mesh_sockaddr4 *to = ctx->optval;

	if (!address_is_v4(&origin->address) || (void *)(to + 1) > ctx->optval_end)
		return 0;
	to->family = AF_INET;
	to->port = origin->port;
	to->address = address_to_v4(&origin->address);
	to->zero = 0;
	ctx->optlen = sizeof(*to);
	return 1;
}

static __always_inline int mesh_answer6(struct bpf_sockopt *ctx, const struct mesh_origin *origin)
{
	const __u32 *words = address_words_const(&origin->address);
	struct mesh_sockaddr6 *to = ctx->optval;

	if ((void *)(to + 1) > ctx->optval_end)
		return 0;
	to->family = AF_INET6;
	to->port = origin->port;
	to->flow = 0;
	to->address[0] = words[0];
	to->address[1] = words[1];
	to->address[2] = words[2];
	to->address[3] = words[3];
	to->scope = 0;
	ctx->optlen = sizeof(*to);
	return 1;
}

/* Any error of the kernel, which knows no such option without netfilter, is replaced. */
static __always_inline void mesh_getsockopt(struct bpf_sockopt *ctx)
{
	struct mesh_origin *origin;
	int answered;

	if (ctx->optname != MESH_SO_ORIGINAL_DST ||
	    (ctx->level != MESH_SOL_IP && ctx->level != MESH_SOL_IPV6) || !ctx->sk)
		return;
	origin = bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, 0);
	if (!origin || origin->end != MESH_ACCEPTED)
		return;
	mesh_note_proxy();
	if (ctx->level == MESH_SOL_IP)
		answered = mesh_answer4(ctx, origin);
	else
		answered = mesh_answer6(ctx, origin);
	if (answered)
		ctx->retval = 0;
}
