/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Messages between an application and its proxy go from the sender's socket to the receiver's queue
 * of messages (struct sk_psock) and skip TCP.
 *
 * The receiver reads that queue before what TCP has received. So a message may skip TCP only while
 * the receiver has read all that the sender has sent by TCP, which the sequence numbers tell. What
 * may not takes TCP, in order and with its flow control:
 *
 *   - what is sent before both sockets are known;
 *   - all while the receiver's queue is long or TCP is short of memory, because the queue has no
 *     limit of its own;
 *   - what is sent to a program that reads by splice(), or that is not known not to (reader.h);
 *   - what is sent by a program that sends urgent data (syscall.h);
 *   - sockets with another protocol on top (MPTCP), and those that send without a copy
 *     (MSG_ZEROCOPY), which wait for TCP to tell that it is done.
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
#define MESH_QUEUE 16
/* The number of octets that may skip TCP in a row, while the receiver sends nothing itself. More is
 * a stream, for which TCP is as fast, and which programs read by splice() if they do at all. */
#define MESH_BURST 32768

/* Adds a socket at the end of its handshake. Data in a SYN (TCP Fast Open) has taken TCP. */
static __always_inline void mesh_join(struct bpf_sock_ops *ctx, struct bpf_sock *sk,
				      struct mesh_tuple *tuple)
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
	if (bpf_map_update_elem(&mesh_readers, &member.cookie, &reader, BPF_ANY))
		goto full;
	if (bpf_map_update_elem(&mesh_members, tuple, &member, BPF_ANY))
		goto no_member;
	if (bpf_sock_hash_update(ctx, &mesh_sockets, tuple, BPF_ANY))
		goto no_socket;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
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
static __always_inline int mesh_queue_has_room(const struct tcp_sock *peer)
{
	struct sk_psock *psock = mesh_psock(peer);
	struct list_head *head, *entry;

	if (!psock || mesh_has_verdict(psock)) /* another program was attached later */
		return 0;
	head = (void *)psock + bpf_core_field_offset(struct sk_psock, ingress_msg);
	entry = head;
	for (int i = 0; i < MESH_QUEUE; i++) {
		if (bpf_core_read(&entry, sizeof(entry), &entry->next) || !entry)
			return 0;
		if (entry == head)
			return 1;
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
static __always_inline int mesh_may_skip(struct tcp_sock *tcp, const struct mesh_member *member)
{
	const struct tcp_sock *peer = (void *)member->sock;

	return !tcp->inet_conn.icsk_ulp_ops && !mesh_has_zerocopy(tcp) &&
	       mesh_cookie_of(peer) == member->cookie &&
	       BPF_CORE_READ(peer, copied_seq) == tcp->write_seq &&
	       !BPF_CORE_READ(peer, inet_conn.icsk_ulp_ops) && mesh_queue_has_room(peer) &&
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

/* Returns whether a message is no more than what may skip TCP in a row. What a socket sends ends
 * the row of what is sent to it. */
static __always_inline int mesh_is_no_stream(const struct tcp_sock *tcp, struct mesh_reader *reader,
					     __u32 size)
{
	__u64 cookie = mesh_cookie_of(tcp);
	struct mesh_reader *own = bpf_map_lookup_elem(&mesh_readers, &cookie);

	if (own)
		own->burst = 0;
	if (reader->burst > MESH_BURST || size > MESH_BURST - reader->burst) {
		reader->burst = MESH_BURST + 1;
		return 0;
	}
	reader->burst += size;
	return 1;
}

/* Returns whether splice() of the receiver has missed messages that are still in its queue. What
 * TCP receives from now on would overtake them. */
static __always_inline int mesh_is_stuck(const struct mesh_reader *reader, __u64 cookie)
{
	const struct tcp_sock *peer = (void *)reader->sock;

	return reader->stuck && mesh_cookie_of(peer) == cookie && mesh_has_messages(peer);
}

static __always_inline int mesh_message(struct sk_msg_md *msg)
{
	struct mesh_member *member;
	struct mesh_reader *reader;
	struct mesh_tuple peer;
	struct tcp_sock *tcp;
	int plain, no_stream;

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
	plain = mesh_sends_plainly(reader, peer.netns);
	no_stream = mesh_is_no_stream(tcp, reader, msg->size);
	if (plain && no_stream && mesh_reads_messages(reader) && mesh_may_skip(tcp, member) &&
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
