/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a socket asked for when it was connected: kept with it, by the program at
 * connect(2), for those that answer names, and for the sweep. */
#pragma once

#include "serving.h"
#include "socket.h"

/* Keeps what a UDP socket is connected to: it stays so if the kernel refuses the
 * connect() that is under way. */
static __always_inline void record_before(struct bpf_sock *sk, const struct connected *record)
{
	struct connected *before;

	if (!connected_to(sk, &record->backend, record->backend_port))
		return;
	before = bpf_sk_storage_get(&connected_before, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (before)
		*before = *record;
}

/* Remembers the question of a connect() with the socket. */
static __always_inline void record_connect(struct bpf_sock *sk, const struct destination *service,
					   const struct destination *backend)
{
	struct connected *record =
		bpf_sk_storage_get(&connected, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!record) {
		COUNT(record_failed); /* the connection works all the same */
		return;
	}
	if (sk->protocol == IPPROTO_UDP)
		record_before(sk, record);
	record->service = service->address;
	record->service_port = service->port;
	record->backend = backend->address;
	record->backend_port = backend->port;
}

/* A connect() to a plain address takes a Service's name from it. Other records
 * stay: nobody believes one that is not of the socket's peer. */
static __always_inline void forget_connect(struct bpf_sock *sk, const struct destination *d)
{
	struct connected *record = bpf_sk_storage_get(&connected, sk, 0, 0);

	if (!record)
		return;
	if (destination_is(d, &record->backend, record->backend_port))
		bpf_sk_storage_delete(&connected, sk);
	record = bpf_sk_storage_get(&connected_before, sk, 0, 0);
	if (record && destination_is(d, &record->backend, record->backend_port))
		bpf_sk_storage_delete(&connected_before, sk);
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

/* The backend that a UDP socket's last connect() to a service got, or the one
 * before, if it still serves. */
static __always_inline int backend_of_connect(struct bpf_sock *sk, const struct frontend *frontend,
					      const struct destination *service,
					      struct destination *backend)
{
	struct connected *record = bpf_sk_storage_get(&connected, sk, 0, 0);

	if (!record)
		return 0;
	return backend_of_record(record, frontend, service, backend) ||
	       backend_of_record(bpf_sk_storage_get(&connected_before, sk, 0, 0), frontend, service,
				 backend);
}

/* Whether a record speaks of what the socket is connected to, and its name still
 * stands: an address that has ceased to be a Service's is nobody's name. TCP
 * keeps the name it asked for as long as it lives. */
static __always_inline int record_names(const struct connected *record, struct bpf_sock_addr *ctx,
					const struct destination *d)
{
	struct destination service;

	if (!record || !destination_is(d, &record->backend, record->backend_port))
		return 0;
	destination_set(&service, &record->service, record->service_port);
	return ctx->protocol != IPPROTO_UDP || frontend_of(&service, IPPROTO_UDP);
}

/* The name of what the socket is connected to. The record of the latest connect()
 * need not be that: the kernel may have refused it, or not have come to it. Records
 * stay, also without a name: by them the sweep finds the socket. */
static __always_inline int connected_name(struct bpf_sock_addr *ctx, struct destination *d)
{
	struct connected *record = bpf_sk_storage_get(&connected, ctx->sk, 0, 0);

	if (!record || !connected_to(ctx->sk, &d->address, d->port))
		return 0;
	if (!record_names(record, ctx, d)) {
		record = bpf_sk_storage_get(&connected_before, ctx->sk, 0, 0);
		if (!record || !record_names(record, ctx, d))
			return 0;
	}
	destination_set(d, &record->service, record->service_port);
	return 1;
}
