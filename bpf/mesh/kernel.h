/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What programs read of the kernel's own structures. CO-RE adapts the offsets. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* Linux: include/net/sock.h, include/linux/tcp.h, include/net/inet_connection_sock.h,
 * include/linux/skmsg.h, include/linux/sched.h */
struct list_head {
	struct list_head *next;
} __attribute__((preserve_access_index));

struct sk_msg_sg {
	__u32 size;
} __attribute__((preserve_access_index));

/* A message in a queue. A FIN is one without data. */
struct sk_msg {
	struct sk_msg_sg sg;
	struct list_head list;
} __attribute__((preserve_access_index));

struct sk_psock {
	struct list_head ingress_msg;
} __attribute__((preserve_access_index));

struct proto {
	unsigned long *memory_pressure;
} __attribute__((preserve_access_index));

typedef struct {
	__s64 counter;
} atomic64_t;

struct net {
	__u64 net_cookie;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct sock_common {
	atomic64_t skc_cookie;
	struct proto *skc_prot;
	unsigned long skc_flags; /* bits by enum sock_flags */
	possible_net_t skc_net;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	void *sk_user_data;
} __attribute__((preserve_access_index));

enum sock_flags { SOCK_ZEROCOPY };

struct tcp_ulp_ops;

struct inet_sock {
	struct sock sk;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_ulp_ops *icsk_ulp_ops;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 copied_seq;
	__u32 write_seq;
	__u16 urg_data;
} __attribute__((preserve_access_index));

struct task_struct {
	struct task_struct *group_leader, *real_parent;
	__u64 start_time;
	char comm[16];
} __attribute__((preserve_access_index));

/* Bits of sk_user_data that are not of the pointer: SK_USER_DATA_PTRMASK. The bit of a psock is
 * SK_USER_DATA_PSOCK. */
#define MESH_USER_DATA_FLAGS 7UL
#define MESH_USER_DATA_PSOCK 4UL

/* Returns what a socket in a sockmap has; 0: it is in none. */
static __always_inline struct sk_psock *mesh_psock(const struct tcp_sock *tcp)
{
	unsigned long data = (unsigned long)BPF_CORE_READ(tcp, inet_conn.icsk_inet.sk.sk_user_data);

	if (!(data & MESH_USER_DATA_PSOCK))
		return 0;
	return (void *)(data & ~MESH_USER_DATA_FLAGS);
}

static __always_inline __u64 mesh_cookie_of(const struct tcp_sock *tcp)
{
	return BPF_CORE_READ(tcp, inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter);
}

/* Returns whether messages with data wait in the queue of a socket. A FIN without data follows
 * those with data. */
static __always_inline int mesh_has_messages(const struct tcp_sock *tcp)
{
	struct sk_psock *psock = mesh_psock(tcp);
	void *head = (void *)psock + bpf_core_field_offset(struct sk_psock, ingress_msg);
	struct list_head *entry = head;

	if (!psock)
		return 0;
	for (int i = 0; i < 2; i++) {
		const struct sk_msg *message;

		if (bpf_core_read(&entry, sizeof(entry), &entry->next) || !entry || entry == head)
			return 0;
		message = (void *)entry - bpf_core_field_offset(struct sk_msg, list);
		if (BPF_CORE_READ(message, sg.size))
			return 1;
	}
	return 0;
}
