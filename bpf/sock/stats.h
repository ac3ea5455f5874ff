/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the TCP connections of sockets to Services, for each Service and, if the agent asks for
 * it, each backend.
 *
 * The hook of connect() stores the Service with the socket (struct connection). The connection is
 * counted from its SYN to its end, and what was counted is stored there, too. So an end is counted
 * once, in the rows of its beginning: not if the agent has deleted a row, which it does if the
 * Service is gone, and not if its ID has another row by then. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/maps.h"
#include "lb/types.h"
#include "sock/maps.h"
#include "sock/types.h"

/* Whether to count in `backend_sockets`, too. Set by the loader. */
const volatile __u8 stats_per_backend = 0;

/* Key: ID in `services`. Rows are not per CPU: connections are rarer than packets by far, and the
 * memory must not grow with the number of CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct socket_stats);
} service_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct backend_sockets_key);
	__type(value, struct socket_stats);
} backend_sockets SEC(".maps");

/* Connections that are not counted, because there was no room for a row. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sockets_uncounted SEC(".maps");

/* Linux: include/net/tcp_states.h */
enum { TCP_STATE_SYN_SENT = 2, TCP_STATE_SYN_RECV = 3, TCP_STATE_CLOSE = 7 };

/* include/linux/tcp.h, include/net/sock.h */
struct tcp_sock {
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u64 bytes_received;
	__u32 total_retrans;
} __attribute__((preserve_access_index));

struct sock_common {
	unsigned long skc_flags;
} __attribute__((preserve_access_index));

static const struct socket_stats no_stats;

static __always_inline void stats_add(__u64 *sum, __u64 n)
{
	__sync_fetch_and_add(sum, n);
}

static __always_inline void stats_uncounted(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&sockets_uncounted, &zero);

	if (count)
		stats_add(count, 1);
}

/* Returns the row of a key, and makes it if there is none; 0 if there is no room. */
static __always_inline struct socket_stats *stats_make(void *table, const void *key)
{
	struct socket_stats *row = bpf_map_lookup_elem(table, key);

	if (row)
		return row;
	bpf_map_update_elem(table, key, &no_stats, BPF_NOEXIST);
	row = bpf_map_lookup_elem(table, key);
	if (row) /* of CPUs that do this at a time, one succeeds */
		__sync_val_compare_and_swap(&row->birth, 0, bpf_ktime_get_ns());
	return row;
}

/* Returns the row in which a connection was counted; 0 if there is none. */
static __always_inline struct socket_stats *stats_of(void *table, const void *key, __u64 birth)
{
	struct socket_stats *row = bpf_map_lookup_elem(table, key);

	return row && birth && row->birth == birth ? row : 0;
}

static __always_inline struct socket_stats *stats_of_service(const struct connection *connection)
{
	__u32 service = connection->service;

	return stats_of(&service_sockets, &service, connection->service_birth);
}

static __always_inline void stats_backend_key(const struct connection *connection,
					      struct backend_sockets_key *key)
{
	key->service_birth = connection->service_birth;
	key->address = connection->peer.backend;
	key->service = connection->service;
	key->port = connection->peer.backend_port;
	key->reserved = 0;
}

static __always_inline struct socket_stats *stats_of_backend(const struct connection *connection)
{
	struct backend_sockets_key key;

	if (!connection->backend_birth)
		return 0;
	stats_backend_key(connection, &key);
	return stats_of(&backend_sockets, &key, connection->backend_birth);
}

/* Has the kernel call the program when the state of the socket changes. Keeps the flags of other
 * owners of such programs. */
static __always_inline void stats_watch(struct bpf_sock_ops *ctx)
{
	__u32 flags = ctx->bpf_sock_ops_cb_flags;

	if (!(flags & BPF_SOCK_OPS_STATE_CB_FLAG))
		bpf_sock_ops_cb_flags_set(ctx, flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

static __always_inline void stats_start_backend(struct connection *connection)
{
	struct backend_sockets_key key;
	struct socket_stats *row;

	stats_backend_key(connection, &key);
	row = stats_make(&backend_sockets, &key);
	if (!row) {
		stats_uncounted();
		return;
	}
	connection->backend_birth = row->birth;
	stats_add(&row->started, 1);
}

/* A SYN is about to be sent. */
static __always_inline void stats_start(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct connection *connection = bpf_sk_storage_get(&tcp_connections, sk, 0, 0);
	struct socket_stats *row;
	__u32 service;

	if (!connection || connection->phase != CONNECTION_BEGINS)
		return;
	service = connection->service;
	row = stats_make(&service_sockets, &service);
	if (!row) {
		stats_uncounted();
		return;
	}
	connection->service_birth = row->birth;
	connection->backend_birth = 0;
	connection->phase = CONNECTION_STARTED;
	stats_add(&row->started, 1);
	if (stats_per_backend)
		stats_start_backend(connection);
	stats_watch(ctx);
}

/* Returns the bucket for a time in microseconds. */
static __always_inline __u32 rtt_bucket(__u32 time)
{
	__u32 octave = 0, rest = time;

	for (__u32 bits = 16; bits; bits /= 2) {
		if (rest >> bits) {
			rest >>= bits;
			octave += bits;
		}
	}
	if (octave < RTT_FIRST_OCTAVE)
		return 0;
	if (octave >= RTT_FIRST_OCTAVE + RTT_OCTAVES)
		return RTT_BUCKETS - 1;
	return (octave - RTT_FIRST_OCTAVE) * RTT_PARTS + ((time >> (octave - 2)) & (RTT_PARTS - 1));
}

static __always_inline void stats_establish_in(struct socket_stats *row, __u32 time)
{
	__u32 bucket = rtt_bucket(time);

	if (!row)
		return;
	stats_add(&row->established, 1);
	if (!time || bucket >= RTT_BUCKETS)
		return;
	stats_add(&row->rtt_sum, time);
	stats_add(&row->rtt[bucket], 1);
}

/* `time` is that from the SYN to the SYN-ACK, in microseconds; 0: unknown, because the SYN was
 * retransmitted and the peer has no timestamps. */
static __always_inline void stats_establish(struct connection *connection, __u32 time)
{
	connection->phase = CONNECTION_ESTABLISHED;
	stats_establish_in(stats_of_service(connection), time);
	if (stats_per_backend)
		stats_establish_in(stats_of_backend(connection), time);
}

/* The handshake has ended. Another program may have cleared the flags since the SYN. */
static __always_inline void stats_handshake(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct connection *connection = bpf_sk_storage_get(&tcp_connections, sk, 0, 0);

	if (!connection || connection->phase != CONNECTION_STARTED)
		return;
	stats_establish(connection, ctx->srtt_us >> 3); /* eighths of a microsecond */
	stats_watch(ctx);
}

/* What a connection transferred, at its end. */
struct transferred {
	__u64 sent, received, retransmits;
};

#define SOCK_DONE_FLAG 1 /* enum sock_flags: the peer's FIN was received */

/* The kernel counts a FIN as an octet received. */
static __always_inline void transferred_by(struct bpf_sock *sk, struct transferred *t)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	__u64 flags;

	__builtin_memset(t, 0, sizeof(*t));
	if (!tcp)
		return;
	flags = ((struct sock_common *)tcp)->skc_flags;
	t->sent = tcp->bytes_sent - tcp->bytes_retrans;
	t->received = tcp->bytes_received;
	if (t->received && flags & (1 << SOCK_DONE_FLAG))
		t->received--;
	t->retransmits = tcp->total_retrans;
}

static __always_inline void stats_end_in(struct socket_stats *row, __u32 failed,
					 const struct transferred *t)
{
	if (!row)
		return;
	if (t->sent)
		stats_add(&row->sent_bytes, t->sent);
	if (t->received)
		stats_add(&row->received_bytes, t->received);
	if (t->retransmits)
		stats_add(&row->retransmits, t->retransmits);
	stats_add(failed ? &row->failed : &row->closed, 1);
}

/* A socket is closed. `before` is its state until now. */
static __always_inline void stats_end(struct bpf_sock *sk, __u32 before)
{
	struct connection *connection = bpf_sk_storage_get(&tcp_connections, sk, 0, 0);
	struct transferred t;
	__u32 failed;

	if (!connection || connection->phase < CONNECTION_STARTED)
		return;
	failed = before == TCP_STATE_SYN_SENT || before == TCP_STATE_SYN_RECV;
	/* A socket that is connected to itself ends its handshake like a server. */
	if (!failed && connection->phase == CONNECTION_STARTED)
		stats_establish(connection, 0);
	connection->phase = CONNECTION_NOT_COUNTED;
	transferred_by(sk, &t);
	stats_end_in(stats_of_service(connection), failed, &t);
	if (stats_per_backend)
		stats_end_in(stats_of_backend(connection), failed, &t);
}
