/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Messages between an application and its proxy go from the sender's socket to the receiver's queue
 * of messages (struct sk_psock) and skip TCP.
 *
 * A program of type sk_skb puts what TCP receives into the same queue, so that all is read in one
 * order, and the kernel's answers about what there is to read count all of it (SIOCINQ, and a read
 * that returns less than it was asked for). A message may skip TCP only while the receiver has read
 * all that the sender has sent by TCP, which the sequence numbers tell. What may not takes TCP, in
 * order and with its flow control:
 *
 *   - all while the receiver's queue is long or TCP is short of memory, because the queue has no
 *     limit of its own for what skips TCP;
 *   - what is sent by a program that sends urgent data;
 *   - sockets with another protocol on top (MPTCP), and those that send without a copy
 *     (MSG_ZEROCOPY), which wait for TCP to tell that it is done.
 *
 * Both sockets of a connection join at the end of its handshake if their programs are known to read
 * such a queue (reader.h), or none.
 *
 * A socket that is known here cannot get TLS in the kernel, which would not decrypt what is in the
 * queue (mesh_setsockopt). */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/policy.h"
#include "mesh/reader.h"
#include "mesh/syscall.h"

/* Whether to use it. Set by the loader. */
const volatile __u8 mesh_sockmap = 0;

/* The sockets of connections between applications and proxies, by their own tuple. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct mesh_tuple);
	__type(value, __u64);
} mesh_sockets SEC(".maps");

/* The same sockets for reading: programs of this type cannot look up `mesh_sockets`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_tuple);
	__type(value, struct mesh_member);
} mesh_members SEC(".maps");

/* The largest number of messages in the queue of a receiver. */
#define MESH_QUEUE	  16
/* The largest number of octets there: TCP begins with a buffer of as many (tcp_rmem). */
#define MESH_QUEUE_OCTETS 131072

/* Returns whether messages of a connection may skip TCP, by what is known of the programs at its
 * ends. `tuple` is that of the calling process, which connects. */
static __always_inline int mesh_may_join(struct bpf_sock *sk, const struct mesh_tuple *tuple)
{
	struct mesh_socket_state *state =
		bpf_sk_storage_get(&mesh_socket_states, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	const struct mesh_program_key *acceptor;

	if (!state)
		return 0;
	mesh_current_program(&state->program, tuple->netns);
	acceptor = mesh_acceptor_at(tuple->netns, tuple->remote_port);
	state->joins =
		acceptor && mesh_program_fits(acceptor) && mesh_program_fits(&state->program);
	return state->joins;
}

/* Adds a socket at the end of its handshake. Data in a SYN (TCP Fast Open) has taken TCP. */
static __always_inline void mesh_join(struct bpf_sock_ops *ctx, struct bpf_sock *sk,
				      struct mesh_socket_state *state, struct mesh_tuple *tuple)
{
	struct mesh_member member = {.cookie = bpf_get_socket_cookie(ctx)};
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct mesh_reader reader = {};

	if (!tcp)
		return;
	if (mesh_psock(tcp)) { /* a second program would take its messages, or fail */
		MESH_COUNT(foreign);
		return;
	}
	member.sock = (__u64)tcp;
	reader.sock = (__u64)tcp;
	reader.program = state->program;
	if (bpf_map_update_elem(&mesh_readers, &member.cookie, &reader, BPF_ANY))
		goto full;
	if (bpf_map_update_elem(&mesh_members, tuple, &member, BPF_ANY))
		goto no_member;
	if (bpf_sock_hash_update(ctx, &mesh_sockets, tuple, BPF_ANY))
		goto no_socket;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	state->sock = (__u64)tcp;
	state->joined = 1;
	MESH_COUNT(joined);
	return;
no_socket:
	bpf_map_delete_elem(&mesh_members, tuple);
no_member:
	bpf_map_delete_elem(&mesh_readers, &member.cookie);
full:
	MESH_COUNT(not_joined);
}

/* The kernel removes a closed socket from `mesh_sockets`. */
static __always_inline void mesh_leave(struct bpf_sock_ops *ctx, struct mesh_tuple *tuple)
{
	struct mesh_member *member = bpf_map_lookup_elem(&mesh_members, tuple);
	__u64 cookie = bpf_get_socket_cookie(ctx);

	if (member && member->cookie == cookie)
		bpf_map_delete_elem(&mesh_members, tuple);
	bpf_map_delete_elem(&mesh_readers, &cookie);
}

/* Returns whether the queue of a socket has room for a message. */
static __always_inline int mesh_queue_has_room(const struct tcp_sock *peer, __u32 size)
{
	struct sk_psock *psock = mesh_psock(peer);
	struct list_head *head, *entry;

	if (!psock)
		return 0;
	head = (void *)psock + bpf_core_field_offset(struct sk_psock, ingress_msg);
	entry = head;
	for (int i = 0; i < MESH_QUEUE; i++) {
		const struct sk_msg *message;

		if (bpf_core_read(&entry, sizeof(entry), &entry->next) || !entry)
			return 0;
		if (entry == head)
			return size <= MESH_QUEUE_OCTETS;
		message = (void *)entry - bpf_core_field_offset(struct sk_msg, list);
		size += BPF_CORE_READ(message, sg.size);
	}
	return 0;
}

static __always_inline int mesh_has_memory(const struct tcp_sock *tcp)
{
	unsigned long *at =
		BPF_CORE_READ(tcp, inet_conn.icsk_inet.sk.__sk_common.skc_prot, memory_pressure);
	unsigned long pressure = 1;

	return at && !bpf_probe_read_kernel(&pressure, sizeof(pressure), at) && !pressure;
}

/* Returns whether a socket may send with MSG_ZEROCOPY. */
static __always_inline int mesh_has_zerocopy(const struct tcp_sock *tcp)
{
	unsigned long flags = BPF_CORE_READ(tcp, inet_conn.icsk_inet.sk.__sk_common.skc_flags);

	return flags >> bpf_core_enum_value(enum sock_flags, SOCK_ZEROCOPY) & 1;
}

/* Returns whether a message may skip TCP. The receiver's memory may belong to another socket by
 * now, but then the cookie differs. */
static __always_inline int mesh_may_skip(struct tcp_sock *tcp, const struct mesh_member *member,
					 __u32 size)
{
	const struct tcp_sock *peer = (void *)member->sock;

	return !tcp->inet_conn.icsk_ulp_ops && !mesh_has_zerocopy(tcp) &&
	       mesh_cookie_of(peer) == member->cookie &&
	       BPF_CORE_READ(peer, copied_seq) == tcp->write_seq &&
	       !BPF_CORE_READ(peer, inet_conn.icsk_ulp_ops) && mesh_queue_has_room(peer, size) &&
	       mesh_has_memory(tcp);
}

/* The tuple of the peer of the socket that sends. */
static __always_inline void mesh_peer_tuple(const volatile struct sk_msg_md *msg,
					    struct mesh_tuple *t)
{
	__u32 local6[4] = {msg->local_ip6[0], msg->local_ip6[1], msg->local_ip6[2],
			   msg->local_ip6[3]};
	__u32 remote6[4] = {msg->remote_ip6[0], msg->remote_ip6[1], msg->remote_ip6[2],
			    msg->remote_ip6[3]};
	__u32 family = msg->family, local4 = msg->local_ip4, remote4 = msg->remote_ip4;

	address_of_socket(&t->local, family, remote4, remote6);
	address_of_socket(&t->remote, family, local4, local6);
	t->netns = bpf_get_netns_cookie((void *)msg);
	t->local_port = bpf_ntohl(msg->remote_port);
	t->remote_port = msg->local_port;
	t->reserved = 0;
}

/* Returns whether splice() of the receiver has missed messages that are still in its queue. */
static __always_inline int mesh_is_stuck(const struct mesh_reader *reader, __u64 cookie)
{
	const struct tcp_sock *peer = (void *)reader->sock;

	return reader->stuck && mesh_cookie_of(peer) == cookie && mesh_has_messages(peer);
}

/* Returns whether the message that the calling process sends may skip TCP. It may not if the
 * process has sent urgent data before, or does now: TCP tells the receiver of that. */
static __always_inline int mesh_sends_plainly(struct mesh_reader *reader, __u64 netns)
{
	struct mesh_program_key key;
	struct mesh_program *program;
	__u64 flags;
	__u32 call = mesh_current_call(&flags);

	if (call & MESH_SENDS && !(flags & MESH_MSG_OOB))
		return !reader->urgent;
	if (!(flags & MESH_MSG_OOB))
		return 0;
	reader->urgent = 1;
	mesh_current_program(&key, netns);
	program = mesh_program_row(&key);
	if (program)
		program->unfit = 1;
	return 0;
}

static __always_inline int mesh_message(struct sk_msg_md *msg)
{
	struct mesh_member *member;
	struct mesh_reader *reader;
	struct mesh_tuple peer;
	struct tcp_sock *tcp;

	if (!msg->sk)
		return SK_PASS;
	mesh_peer_tuple(msg, &peer);
	member = bpf_map_lookup_elem(&mesh_members, &peer);
	tcp = bpf_skc_to_tcp_sock(msg->sk);
	if (!member || !tcp)
		goto by_tcp;
	reader = bpf_map_lookup_elem(&mesh_readers, &member->cookie);
	if (!reader)
		goto by_tcp;
	if (mesh_is_stuck(reader, member->cookie))
		return SK_DROP;
	if (mesh_sends_plainly(reader, peer.netns) && !reader->splices &&
	    mesh_may_skip(tcp, member, msg->size) &&
	    bpf_msg_redirect_hash(msg, &mesh_sockets, &peer, BPF_F_INGRESS) == SK_PASS) {
		MESH_COUNT(skipped);
		return SK_PASS;
	}
by_tcp:
	MESH_COUNT(by_tcp);
	return SK_PASS;
}

/* Linux: include/uapi/linux/tcp.h, include/linux/bpf-cgroup.h, asm-generic/errno.h */
enum { MESH_TCP_ULP = 31, MESH_OPTION_MOST = 4096, MESH_EOPNOTSUPP = 95 };

static __always_inline void mesh_option_tuple(struct bpf_sockopt *ctx, const struct bpf_sock *sk,
					      struct mesh_tuple *t)
{
	__u32 local6[4] = {sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]};
	__u32 remote6[4] = {sk->dst_ip6[0], sk->dst_ip6[1], sk->dst_ip6[2], sk->dst_ip6[3]};

	address_of_socket(&t->local, sk->family, sk->src_ip4, local6);
	address_of_socket(&t->remote, sk->family, sk->dst_ip4, remote6);
	t->netns = bpf_get_netns_cookie(ctx);
	t->local_port = sk->src_port;
	t->remote_port = bpf_ntohs(sk->dst_port);
	t->reserved = 0;
}

/* Refuses TLS in the kernel (TCP_ULP) for sockets whose messages skip TCP, as a kernel without it
 * would. Returns whether the option is set. */
static __always_inline int mesh_setsockopt(struct bpf_sockopt *ctx)
{
	struct mesh_tuple tuple;

	if (ctx->optlen > MESH_OPTION_MOST)
		ctx->optlen = 0; /* the program has not seen all of it, and leaves it as it is */
	if (ctx->level != MESH_TCP || ctx->optname != MESH_TCP_ULP || !ctx->sk)
		return 1;
	mesh_option_tuple(ctx, ctx->sk, &tuple);
	if (!bpf_map_lookup_elem(&mesh_members, &tuple))
		return 1;
	bpf_set_retval(-MESH_EOPNOTSUPP);
	return 0;
}
