/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The record of a connected socket: the Service and backend of its connect(2), kept in socket
 * storage for getpeername(2) and for the garbage collection of sockets. */
#pragma once

#include <linux/in.h>

#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/serving.h"
#include "lb/types.h"
#include "sock/maps.h"
#include "sock/socket.h"
#include "sock/types.h"

/* Stores the current peer of a UDP socket: the socket stays connected to it if the kernel rejects
 * the connect() in progress. */
static __always_inline void record_prev(struct bpf_sock *sk, const struct connected *record)
{
	struct connected *before;

	if (!connected_to(sk, &record->backend, record->backend_port))
		return;
	before = bpf_sk_storage_get(&connected_prev, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (before)
		*before = *record;
}

static __always_inline void record_set(struct connected *record, const struct destination *service,
				       const struct destination *backend)
{
	record->service = service->address;
	record->service_port = service->port;
	record->backend = backend->address;
	record->backend_port = backend->port;
}

/* Stores the record of a connect() with a TCP socket. The kernel calls the hook only for sockets
 * without a connection, so none is being counted. */
static __always_inline void record_tcp(struct bpf_sock *sk, __u32 id,
				       const struct destination *service,
				       const struct destination *backend)
{
	struct connection *connection =
		bpf_sk_storage_get(&tcp_connections, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!connection) {
		COUNT(record_failed); /* the connection works without it */
		return;
	}
	record_set(&connection->peer, service, backend);
	connection->service = id;
	connection->phase = CONNECTION_BEGINS;
}

/* Stores the record of a connect() with the socket. `id` is that of the service. */
static __always_inline void record_connect(struct bpf_sock *sk, __u32 id,
					   const struct destination *service,
					   const struct destination *backend)
{
	struct connected *record;

	if (sk->protocol == IPPROTO_TCP) {
		record_tcp(sk, id, service, backend);
		return;
	}
	record = bpf_sk_storage_get(&connected, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!record) {
		COUNT(record_failed);
		return;
	}
	record_prev(sk, record);
	record_set(record, service, backend);
}

/* Removes a TCP socket's records of a backend that it connects to directly, and has the connection
 * not counted. */
static __always_inline void record_forget_tcp(struct bpf_sock *sk, const struct destination *d)
{
	struct connection *connection = bpf_sk_storage_get(&tcp_connections, sk, 0, 0);

	if (!connection)
		return;
	connection->phase = CONNECTION_NOT_COUNTED;
	if (destination_is(d, &connection->peer.backend, connection->peer.backend_port))
		bpf_sk_storage_delete(&tcp_connections, sk);
}

/* Removes the records of a socket that connects to their backend directly: getpeername must not
 * return a Service then. Records of other peers stay: they are ignored while the socket has another
 * peer. */
static __always_inline void record_forget(struct bpf_sock *sk, const struct destination *d)
{
	struct connected *record;

	if (sk->protocol == IPPROTO_TCP)
		record_forget_tcp(sk, d);
	record = bpf_sk_storage_get(&connected, sk, 0, 0);
	if (!record)
		return;
	if (destination_is(d, &record->backend, record->backend_port))
		bpf_sk_storage_delete(&connected, sk);
	record = bpf_sk_storage_get(&connected_prev, sk, 0, 0);
	if (record && destination_is(d, &record->backend, record->backend_port))
		bpf_sk_storage_delete(&connected_prev, sk);
}

/* Returns the record of a socket's last connect(), or 0. Each received datagram asks: a lookup
 * that finds nothing takes 8 ns. */
static __always_inline struct connected *record_of(struct bpf_sock *sk)
{
	struct connection *connection = 0;

	if (sk->protocol == IPPROTO_TCP)
		connection = bpf_sk_storage_get(&tcp_connections, sk, 0, 0);
	return connection ? &connection->peer : bpf_sk_storage_get(&connected, sk, 0, 0);
}

static __always_inline int backend_of_record(const struct connected *record,
					     const struct frontend *frontend,
					     const struct destination *service,
					     struct destination *backend)
{
	__u32 slot = 0;

	if (!record || !destination_is(service, &record->service, record->service_port))
		return 0;
	destination_set(backend, &record->backend, record->backend_port);
	return serves(frontend, backend, &slot);
}

/* Returns the backend of the last connect() of a UDP socket to a service, or of the one before, if
 * it still serves. */
static __always_inline int backend_of_connect(struct bpf_sock *sk, const struct frontend *frontend,
					      const struct destination *service,
					      struct destination *backend)
{
	struct connected *record = bpf_sk_storage_get(&connected, sk, 0, 0);

	if (!record)
		return 0;
	return backend_of_record(record, frontend, service, backend) ||
	       backend_of_record(bpf_sk_storage_get(&connected_prev, sk, 0, 0), frontend, service,
				 backend);
}

/* Returns whether a record is of the socket's peer, and getpeername may still return its Service:
 * not if the address is no longer a Service's. For TCP it may for the life of the connection. */
static __always_inline int record_names(const struct connected *record, struct bpf_sock_addr *ctx,
					const struct destination *d)
{
	struct destination service;

	if (!record || !destination_is(d, &record->backend, record->backend_port))
		return 0;
	destination_set(&service, &record->service, record->service_port);
	return ctx->protocol != IPPROTO_UDP || frontend_of(&service, IPPROTO_UDP);
}

/* Replaces the backend by the Service in the result of getpeername. The latest record need not be
 * of the peer: the kernel may have rejected that connect(), or not completed it. Records without a
 * name are kept, because the garbage collection of sockets uses them. */
static __always_inline int connected_name(struct bpf_sock_addr *ctx, struct destination *d)
{
	struct connected *record = record_of(ctx->sk);

	if (!record || !connected_to(ctx->sk, &d->address, d->port))
		return 0;
	if (!record_names(record, ctx, d)) {
		record = bpf_sk_storage_get(&connected_prev, ctx->sk, 0, 0);
		if (!record || !record_names(record, ctx, d))
			return 0;
	}
	destination_set(d, &record->service, record->service_port);
	return 1;
}
