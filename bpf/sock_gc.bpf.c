// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Garbage collection of sockets: iterators over the sockets of one network namespace that find
 * those whose backend no longer serves (R29), report them to the agent, and destroy them if the
 * kernel supports it (bpf_sock_destroy, Linux 6.5): UDP sockets immediately, TCP sockets only if
 * the agent has listed them in sockets_to_abort (R30). `beeline cleanup` ends all UDP sockets that
 * are connected by a Service (any_backend).
 *
 * Reading an iterator returns an array of struct stale_socket. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "lb/serving.h"
#include "sock/maps.h"

/* Keeps the type in the BTF for the agent: no variable has it. */
const struct stale_socket *unused_stale_socket __attribute__((unused));

/* include/net/sock.h, include/linux/bpf.h, net/ipv4/udp.c, net/ipv4/tcp_ipv4.c */
struct in6_address {
	__u32 words[4];
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	struct in6_address skc_v6_daddr;
	struct in6_address skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct udp_sock;

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

extern int bpf_sock_destroy(struct sock_common *sk) __ksym __weak;

/* Whether to destroy sockets, or only to report them; set by the loader. */
const volatile __u8 may_destroy = 0;

/* Whether a socket is found whatever its backend, because its record is about to be removed; set by
 * the loader. */
const volatile __u8 any_backend = 0;

static __always_inline void address_from_v6(struct address *a, const struct in6_address *from)
{
	__u32 *words = address_words(a);

	words[0] = from->words[0];
	words[1] = from->words[1];
	words[2] = from->words[2];
	words[3] = from->words[3];
}

static __always_inline void socket_addresses(struct sock_common *sk, struct stale_socket *stale)
{
	stale->family = sk->skc_family;
	stale->local_port = bpf_htons(sk->skc_num);
	stale->backend_port = sk->skc_dport;
	if (stale->family == AF_INET) {
		address_from_v4(&stale->local, sk->skc_rcv_saddr);
		address_from_v4(&stale->backend, sk->skc_daddr);
	} else {
		address_from_v6(&stale->local, &sk->skc_v6_rcv_saddr);
		address_from_v6(&stale->backend, &sk->skc_v6_daddr);
	}
}

/* Returns whether a record is of the socket's peer. */
static __always_inline int is_record_of_peer(const struct connected *record,
					     const struct stale_socket *stale)
{
	return record->backend_port == stale->backend_port &&
	       address_equal(&record->backend, &stale->backend);
}

/* Returns whether a record shows that the socket is connected to a backend that no longer serves,
 * or, with any_backend, to any. */
static __always_inline int is_stale(const struct connected *record, __u8 protocol,
				    struct stale_socket *stale)
{
	struct destination service = {.address = record->service, .port = record->service_port};
	struct destination backend = {.address = record->backend, .port = record->backend_port};
	__u32 slot = 0;

	if (!is_record_of_peer(record, stale))
		return 0;
	if (!any_backend && still_serves(&service, protocol, &backend, &slot))
		return 0;
	stale->service = service.address;
	stale->service_port = service.port;
	stale->protocol = protocol;
	return 1;
}

/* Reports a socket before it is destroyed: if the buffer is full, the next read starts at this
 * socket again. */
static __always_inline int write_socket(struct bpf_iter_meta *meta, struct stale_socket *stale)
{
	return bpf_seq_write(meta->seq, stale, sizeof(*stale)) == 0;
}

SEC("iter/udp")
int beeline_sock_gc_udp(struct bpf_iter__udp *ctx)
{
	struct stale_socket stale = {};
	struct udp_sock *udp = ctx->udp_sk;
	struct connected *record;

	if (!udp)
		return 0;
	record = bpf_sk_storage_get(&connected, (void *)udp, 0, 0);
	if (!record)
		return 0;
	socket_addresses((struct sock_common *)udp, &stale);
	if (!is_record_of_peer(record, &stale)) /* the kernel has rejected the latest connect() */
		record = bpf_sk_storage_get(&connected_prev, (void *)udp, 0, 0);
	if (!record || !is_stale(record, IPPROTO_UDP, &stale))
		return 0;
	stale.cookie = bpf_get_socket_cookie(udp);
	stale.destroyed = may_destroy && bpf_sock_destroy;
	if (write_socket(ctx->meta, &stale) && may_destroy && bpf_sock_destroy)
		bpf_sock_destroy((struct sock_common *)udp);
	return 0;
}

SEC("iter/tcp")
int beeline_sock_gc_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct stale_socket stale = {};
	struct connection *connection;
	struct connected *record;
	struct tcp_sock *tcp;

	if (!sk)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk); /* 0 in TIME_WAIT */
	if (!tcp)
		return 0;
	connection = bpf_sk_storage_get(&tcp_connections, (void *)tcp, 0, 0);
	record = connection ? &connection->peer : bpf_sk_storage_get(&connected, (void *)tcp, 0, 0);
	if (!record)
		return 0;
	socket_addresses(sk, &stale);
	if (!is_stale(record, IPPROTO_TCP, &stale))
		return 0;
	stale.cookie = bpf_get_socket_cookie(tcp);
	stale.destroyed = may_destroy && bpf_sock_destroy &&
			  bpf_map_lookup_elem(&sockets_to_abort, &stale.cookie);
	if (write_socket(ctx->meta, &stale) && stale.destroyed && bpf_sock_destroy)
		bpf_sock_destroy(sk);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
