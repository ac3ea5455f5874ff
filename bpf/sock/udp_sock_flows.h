/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The flows of an unconnected UDP socket, kept in socket storage.
 *
 * Programs for one socket run under the socket lock, so there are no races. Two Services can share
 * a backend, and a program can also send to that backend directly; a datagram from there does not
 * tell which of them it replies to. It counts as the reply to the oldest pending request, and a
 * second flow is sent to another backend if there is one. */
#pragma once

#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/serving.h"
#include "sock/maps.h"
#include "sock/types.h"

struct udp_flow_set {
	struct udp_flows *first;	     /* 0: the socket has none */
	struct udp_flows_overflow *overflow; /* 0: there is none */
};

static __always_inline void udp_flows_of(struct bpf_sock *sk, struct udp_flow_set *set)
{
	set->first = bpf_sk_storage_get(&udp_flows, sk, 0, 0);
	set->overflow = set->first && set->first->overflow
				? bpf_sk_storage_get(&udp_flows_overflow, sk, 0, 0)
				: 0;
}

static __always_inline int flow_free(const struct udp_flow *flow)
{
	return flow->service_port == 0;
}

static __always_inline void flow_clear(struct udp_flow *flow)
{
	__builtin_memset(flow, 0, sizeof(*flow));
	COUNT(flow_stale);
}

static __always_inline int flow_is_to(const struct udp_flow *flow,
				      const struct destination *service)
{
	return destination_is(service, &flow->service, flow->service_port);
}

static __always_inline int flow_is_from(const struct udp_flow *flow,
					const struct destination *backend)
{
	return destination_is(backend, &flow->backend, flow->backend_port);
}

/* Returns whether a flow is direct: noted because its address is also the backend of another flow.
 */
static __always_inline int flow_is_direct(const struct udp_flow *flow)
{
	return flow->service_port == flow->backend_port &&
	       address_equal(&flow->service, &flow->backend);
}

/* A request older than this, in seconds, no longer waits for a reply. */
#define ANSWER_SECONDS 5

static __always_inline int flow_awaits_reply(const struct udp_flow *flow, __u32 now)
{
	return flow->unanswered && now - flow->latest_second <= ANSWER_SECONDS;
}

/* Returns whether a reply more likely belongs to `a` than to `b`: its pending request is older; if
 * neither has one, it was used more recently. */
static __always_inline int flow_likelier(const struct udp_flow *a, const struct udp_flow *b,
					 __u32 now)
{
	int a_waits = flow_awaits_reply(a, now), b_waits = flow_awaits_reply(b, now);

	if (a_waits && b_waits)
		return (__s32)(a->oldest_request - b->oldest_request) < 0;
	if (a_waits || b_waits)
		return a_waits;
	return (__s32)(a->latest_request - b->latest_request) > 0;
}

/* Counts a reply. Only the time of the last pending request is known; the others are assumed to be
 * evenly spaced. */
static __always_inline void flow_count_reply(struct udp_flow *flow)
{
	if (flow->unanswered > 1)
		flow->oldest_request +=
			(flow->latest_request - flow->oldest_request) / (flow->unanswered - 1);
	if (flow->unanswered)
		flow->unanswered--;
}

struct flow_search {
	const struct udp_flows_overflow *overflow;
	struct destination wanted;
	__u32 by_backend;
	__u32 found; /* index for flow_at */
	__u32 now;
	struct udp_flow best;
};

static __always_inline void flow_copy_times(struct udp_flow *to, const struct udp_flow *from)
{
	to->unanswered = from->unanswered;
	to->oldest_request = from->oldest_request;
	to->latest_request = from->latest_request;
	to->latest_second = from->latest_second;
}

static long flow_search_step(__u32 i, struct flow_search *search)
{
	const struct udp_flow *flow;

	if (i >= UDP_FLOWS_OVERFLOW)
		return 1;
	flow = &search->overflow->flow[i];
	if (!search->by_backend) {
		if (!flow_is_to(flow, &search->wanted))
			return 0;
		search->found = UDP_FLOWS + i + 1;
		return 1;
	}
	if (!flow_is_from(flow, &search->wanted) ||
	    (search->found && !flow_likelier(flow, &search->best, search->now)))
		return 0;
	search->found = UDP_FLOWS + i + 1;
	flow_copy_times(&search->best, flow);
	return 0;
}

/* Returns the index of the flow to a service, counted from 1 through both structures; 0: none. */
__noinline __u32 flow_index_by_service(const struct udp_flows *first,
				       const struct udp_flows_overflow *overflow,
				       const struct destination *service)
{
	struct flow_search search = {};

	if (!first || !service)
		return 0;
	for (int i = 0; i < UDP_FLOWS; i++)
		if (flow_is_to(&first->flow[i], service))
			return i + 1;
	if (!overflow)
		return 0;
	search.wanted = *service;
	search.overflow = overflow;
	bpf_loop(first->overflow, flow_search_step, &search, 0);
	return search.found;
}

/* Returns the index of the flow that a datagram from a backend most likely belongs to. */
__noinline __u32 flow_index_by_backend(const struct udp_flows *first,
				       const struct udp_flows_overflow *overflow,
				       const struct destination *backend)
{
	struct flow_search search = {.by_backend = 1};
	__u32 best = 0;

	if (!first || !backend)
		return 0;
	search.now = now_seconds();
	for (int i = 0; i < UDP_FLOWS; i++) {
		const struct udp_flow *flow = &first->flow[i];

		if (!flow_is_from(flow, backend) ||
		    (best && !flow_likelier(flow, &search.best, search.now)))
			continue;
		best = i + 1;
		flow_copy_times(&search.best, flow);
	}
	if (!overflow)
		return best;
	search.found = best;
	search.wanted = *backend;
	search.overflow = overflow;
	bpf_loop(first->overflow, flow_search_step, &search, 0);
	return search.found;
}

/* Returns the flow at an index. The masks repeat checks that have been made, for the verifier. */
static __always_inline struct udp_flow *flow_at(struct udp_flow_set *set, __u32 index)
{
	__u32 i = index - 1;

	if (i < UDP_FLOWS) {
		barrier_var(i);
		return &set->first->flow[i & (UDP_FLOWS - 1)];
	}
	i -= UDP_FLOWS;
	if (!set->overflow || i >= UDP_FLOWS_OVERFLOW)
		return 0;
	barrier_var(i);
	return &set->overflow->flow[i & (UDP_FLOWS_OVERFLOW - 1)];
}

/* Returns the flow to a service, or 0. */
static __always_inline struct udp_flow *flow_by_service(struct udp_flow_set *set,
							const struct destination *service)
{
	return flow_at(set, flow_index_by_service(set->first, set->overflow, service));
}

/* Returns the flow that a datagram from a backend most likely belongs to, or 0. */
static __always_inline struct udp_flow *flow_by_backend(struct udp_flow_set *set,
							const struct destination *backend)
{
	return flow_at(set, flow_index_by_backend(set->first, set->overflow, backend));
}

/* Counts a request. */
static __always_inline void flow_count_request(struct udp_flow_set *set, struct udp_flow *flow)
{
	__u32 now = now_seconds();

	flow->latest_request = ++set->first->clock;
	if (!flow_awaits_reply(flow, now)) {
		flow->oldest_request = flow->latest_request;
		flow->unanswered = 0;
	}
	flow->unanswered++;
	flow->latest_second = now;
}

struct flow_victim_search {
	const struct udp_flows_overflow *overflow;
	__u32 index;
	__u32 age;
	__u32 clock;
};

static long flow_victim_step(__u32 i, struct flow_victim_search *search)
{
	const struct udp_flow *flow;
	__u32 age;

	if (i >= UDP_FLOWS_OVERFLOW)
		return 1;
	flow = &search->overflow->flow[i];
	if (flow_free(flow)) {
		search->index = i;
		return 1;
	}
	age = search->clock - flow->latest_request;
	if (age > search->age) {
		search->age = age;
		search->index = i;
	}
	return 0;
}

/* Returns the index of a free entry in the overflow, or of its least recently used flow. */
__noinline __u32 flow_victim_index(const struct udp_flows *first,
				   const struct udp_flows_overflow *overflow)
{
	struct flow_victim_search search = {};

	if (!first || !overflow)
		return 0;
	search.index = first->overflow;
	search.clock = first->clock;
	search.overflow = overflow;
	if (search.index < UDP_FLOWS_OVERFLOW)
		search.age = ~0U; /* from here only a freed entry is better than an unused one */
	bpf_loop(first->overflow, flow_victim_step, &search, 0);
	return search.index;
}

/* Returns an entry for a new flow in `first`, which is searched first: a free one, or that of the
 * least recently used flow, which moves to the overflow. 0 if the kernel has no memory for the
 * overflow. */
static __always_inline struct udp_flow *flow_alloc(struct bpf_sock *sk, struct udp_flow_set *set)
{
	struct udp_flow *oldest, *moved;
	__u32 index;

	if (!set->first)
		set->first = bpf_sk_storage_get(&udp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!set->first)
		return 0;
	oldest = &set->first->flow[0];
	for (int i = 0; i < UDP_FLOWS; i++) {
		struct udp_flow *flow = &set->first->flow[i];

		if (flow_free(flow))
			return flow;
		if ((__s32)(flow->latest_request - oldest->latest_request) < 0)
			oldest = flow;
	}
	if (!set->overflow)
		set->overflow =
			bpf_sk_storage_get(&udp_flows_overflow, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!set->overflow)
		return 0;
	index = flow_victim_index(set->first, set->overflow);
	if (index >= set->first->overflow && index < UDP_FLOWS_OVERFLOW)
		set->first->overflow = index + 1;
	barrier_var(index);
	moved = &set->overflow->flow[index & (UDP_FLOWS_OVERFLOW - 1)];
	if (!flow_free(moved))
		COUNT(flow_evicted);
	*moved = *oldest;
	return oldest;
}

/* Adds a flow with its first request. */
static __always_inline void flow_add(struct bpf_sock *sk, struct udp_flow_set *set,
				     const struct destination *service,
				     const struct destination *backend)
{
	struct udp_flow *flow = flow_alloc(sk, set);

	if (!flow || !set->first) {
		COUNT(flow_failed); /* the datagram is sent anyway */
		return;
	}
	flow->service = service->address;
	flow->service_port = service->port;
	flow->backend = backend->address;
	flow->backend_port = backend->port;
	flow->slot = 0;
	flow->unanswered = 0;
	flow_count_request(set, flow);
}

static __always_inline void flow_addresses(const struct udp_flow *flow, struct destination *service,
					   struct destination *backend)
{
	destination_set(service, &flow->service, flow->service_port);
	destination_set(backend, &flow->backend, flow->backend_port);
}

/* Returns whether the tables still confirm a flow. */
static __always_inline int flow_is_valid(struct udp_flow *flow)
{
	struct destination service, backend;

	flow_addresses(flow, &service, &backend);
	return still_serves(&service, IPPROTO_UDP, &backend, &flow->slot);
}
