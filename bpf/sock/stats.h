/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the TCP connections of sockets to Services, for each Service and, if the agent asks for
 * it, each backend.
 *
 * A connection is counted from its SYN to its end if the hook of connect() has stored a record of
 * it. `counted_sockets` remembers with the socket what was counted. So an end is counted once, in
 * the rows of its beginning: not if the agent has deleted a row, which it does if the Service is
 * gone, not even if its ID has another row by then. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "sock/socket.h"
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

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct counted_socket);
} counted_sockets SEC(".maps");

/* Connections that are not counted, because there was no room for a row or for what is stored with
 * the socket. */
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

static __always_inline struct socket_stats *stats_of_service(const struct counted_socket *counted)
{
	__u32 service = counted->key.service;

	return stats_of(&service_sockets, &service, counted->key.service_birth);
}

static __always_inline struct socket_stats *stats_of_backend(const struct counted_socket *counted)
{
	struct backend_sockets_key key;

	if (!counted->backend_birth)
		return 0;
	key = counted->key;
	return stats_of(&backend_sockets, &key, counted->backend_birth);
}

/* Has the kernel call the program when the state of the socket changes. Keeps the flags of other
 * owners of such programs. */
static __always_inline void stats_watch(struct bpf_sock_ops *ctx)
{
	__u32 flags = ctx->bpf_sock_ops_cb_flags;

	if (!(flags & BPF_SOCK_OPS_STATE_CB_FLAG))
		bpf_sock_ops_cb_flags_set(ctx, flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

static __always_inline void stats_start_backend(struct counted_socket *counted,
						const struct connected *record)
{
	struct backend_sockets_key key;
	struct socket_stats *row;

	counted->key.address = record->backend;
	counted->key.port = record->backend_port;
	key = counted->key;
	row = stats_make(&backend_sockets, &key);
	if (!row) {
		stats_uncounted();
		return;
	}
	counted->backend_birth = row->birth;
	stats_add(&row->started, 1);
}

/* A SYN is about to be sent. Counts it if the hook of connect() has redirected this connection: its
 * record may also be of an earlier connect() of the socket, to another peer. */
static __always_inline void stats_start(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct connected *record = bpf_sk_storage_get(&connected, sk, 0, 0);
	struct counted_socket *counted;
	struct destination service;
	struct frontend *frontend;
	struct socket_stats *row;
	__u32 id;

	if (!record || !connected_to(sk, &record->backend, record->backend_port))
		return;
	destination_set(&service, &record->service, record->service_port);
	frontend = frontend_of(&service, IPPROTO_TCP);
	if (!frontend)
		return;
	id = frontend->service;
	row = stats_make(&service_sockets, &id);
	counted = bpf_sk_storage_get(&counted_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!row || !counted) {
		stats_uncounted();
		return;
	}
	counted->key.service = id;
	counted->key.service_birth = row->birth;
	counted->backend_birth = 0;
	counted->phase = COUNTED_STARTED;
	stats_add(&row->started, 1);
	if (stats_per_backend)
		stats_start_backend(counted, record);
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
static __always_inline void stats_establish(struct counted_socket *counted, __u32 time)
{
	counted->phase = COUNTED_ESTABLISHED;
	stats_establish_in(stats_of_service(counted), time);
	if (stats_per_backend)
		stats_establish_in(stats_of_backend(counted), time);
}

/* The handshake has ended. Another program may have cleared the flags since the SYN. */
static __always_inline void stats_handshake(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct counted_socket *counted = bpf_sk_storage_get(&counted_sockets, sk, 0, 0);

	if (!counted || counted->phase != COUNTED_STARTED)
		return;
	stats_establish(counted, ctx->srtt_us >> 3); /* eighths of a microsecond */
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
	struct counted_socket *counted = bpf_sk_storage_get(&counted_sockets, sk, 0, 0);
	struct transferred t;
	__u32 failed;

	if (!counted || counted->phase == COUNTED_NOT)
		return;
	failed = before == TCP_STATE_SYN_SENT || before == TCP_STATE_SYN_RECV;
	/* A socket that is connected to itself ends its handshake like a server. */
	if (!failed && counted->phase == COUNTED_STARTED)
		stats_establish(counted, 0);
	counted->phase = COUNTED_NOT;
	transferred_by(sk, &t);
	stats_end_in(stats_of_service(counted), failed, &t);
	if (stats_per_backend)
		stats_end_in(stats_of_backend(counted), failed, &t);
}
