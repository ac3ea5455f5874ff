/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What an unconnected UDP socket asked, of which backend: kept with the socket.
 *
 * Programs of one socket run under its lock, so nothing here is raced. Two
 * Services can share a backend, and a program can also ask that backend itself;
 * whose answer a datagram from there is nobody can know. It counts as that of
 * the question which has waited longest, and a second flow is sent to another
 * backend where there is one.
 */
#pragma once

#include "serving.h"

struct flow_set {
	struct flows *few;	 /* 0: the socket has none */
	struct more_flows *more; /* 0: these are all */
};

static __always_inline void flows_of(struct bpf_sock *sk, struct flow_set *set)
{
	set->few = bpf_sk_storage_get(&udp_flows, sk, 0, 0);
	set->more = set->few && set->few->more ? bpf_sk_storage_get(&more_udp_flows, sk, 0, 0) : 0;
}

static __always_inline int flow_free(const struct flow *flow)
{
	return flow->service_port == 0;
}

static __always_inline void flow_clear(struct flow *flow)
{
	__builtin_memset(flow, 0, sizeof(*flow));
	COUNT(flow_stale);
}

static __always_inline int flow_asks(const struct flow *flow, const struct destination *service)
{
	return destination_is(service, &flow->service, flow->service_port);
}

static __always_inline int flow_answers(const struct flow *flow, const struct destination *backend)
{
	return destination_is(backend, &flow->backend, flow->backend_port);
}

/* A plain address, noted because it is also the backend of another flow. */
static __always_inline int flow_plain(const struct flow *flow)
{
	return flow->service_port == flow->backend_port &&
	       address_equal(&flow->service, &flow->backend);
}

/* An answer that has not come by then will not come, or was none to expect. */
#define ANSWER_SECONDS 5

static __always_inline int flow_waits(const struct flow *flow, __u32 now)
{
	return flow->waiting && now - flow->second <= ANSWER_SECONDS;
}

/* Whether `a` is likelier to have been answered than `b`: its question has
 * waited longer; of two without a question it was used later. */
static __always_inline int flow_likelier(const struct flow *a, const struct flow *b, __u32 now)
{
	int a_waits = flow_waits(a, now), b_waits = flow_waits(b, now);

	if (a_waits && b_waits)
		return (__s32)(a->asked - b->asked) < 0;
	if (a_waits || b_waits)
		return a_waits;
	return (__s32)(a->used - b->used) > 0;
}

/* Takes an answer. When the questions that still wait were asked is known only
 * of the last; they are taken to be evenly spaced. */
static __always_inline void flow_answered(struct flow *flow)
{
	if (flow->waiting > 1)
		flow->asked += (flow->used - flow->asked) / (flow->waiting - 1);
	if (flow->waiting)
		flow->waiting--;
}

struct flow_search {
	const struct more_flows *more;
	struct destination wanted;
	__u32 by_backend;
	__u32 found; /* as flow_at counts */
	__u32 now;
	struct flow best;
};

static __always_inline void flow_copy_times(struct flow *to, const struct flow *from)
{
	to->waiting = from->waiting;
	to->asked = from->asked;
	to->used = from->used;
	to->second = from->second;
}

static long flow_search_step(__u32 i, struct flow_search *search)
{
	const struct flow *flow;

	if (i >= MORE_FLOWS)
		return 1;
	flow = &search->more->flow[i];
	if (!search->by_backend) {
		if (!flow_asks(flow, &search->wanted))
			return 0;
		search->found = FLOWS + i + 1;
		return 1;
	}
	if (!flow_answers(flow, &search->wanted) ||
	    (search->found && !flow_likelier(flow, &search->best, search->now)))
		return 0;
	search->found = FLOWS + i + 1;
	flow_copy_times(&search->best, flow);
	return 0;
}

/* Where the flow to a service is, counted from 1 through both structures; 0: there
 * is none. */
__noinline __u32 flow_index_by_service(const struct flows *few, const struct more_flows *more,
				       const struct destination *service)
{
	struct flow_search search = {};

	if (!few || !service)
		return 0;
	for (int i = 0; i < FLOWS; i++)
		if (flow_asks(&few->flow[i], service))
			return i + 1;
	if (!more)
		return 0;
	search.wanted = *service;
	search.more = more;
	bpf_loop(few->more, flow_search_step, &search, 0);
	return search.found;
}

/* The same for the likeliest flow that a datagram from a backend answers. */
__noinline __u32 flow_index_by_backend(const struct flows *few, const struct more_flows *more,
				       const struct destination *backend)
{
	struct flow_search search = {.by_backend = 1};
	__u32 best = 0;

	if (!few || !backend)
		return 0;
	search.now = now_seconds();
	for (int i = 0; i < FLOWS; i++) {
		const struct flow *flow = &few->flow[i];

		if (!flow_answers(flow, backend) ||
		    (best && !flow_likelier(flow, &search.best, search.now)))
			continue;
		best = i + 1;
		flow_copy_times(&search.best, flow);
	}
	if (!more)
		return best;
	search.found = best;
	search.wanted = *backend;
	search.more = more;
	bpf_loop(few->more, flow_search_step, &search, 0);
	return search.found;
}

/* The masks only repeat what has been checked, for the verifier. */
static __always_inline struct flow *flow_at(struct flow_set *set, __u32 index)
{
	__u32 i = index - 1;

	if (i < FLOWS) {
		barrier_var(i);
		return &set->few->flow[i & (FLOWS - 1)];
	}
	i -= FLOWS;
	if (!set->more || i >= MORE_FLOWS)
		return 0;
	barrier_var(i);
	return &set->more->flow[i & (MORE_FLOWS - 1)];
}

/* The flow to a service, or none. */
static __always_inline struct flow *flow_by_service(struct flow_set *set,
						    const struct destination *service)
{
	return flow_at(set, flow_index_by_service(set->few, set->more, service));
}

/* The likeliest flow that a datagram from a backend answers, or none. */
static __always_inline struct flow *flow_by_backend(struct flow_set *set,
						    const struct destination *backend)
{
	return flow_at(set, flow_index_by_backend(set->few, set->more, backend));
}

/* Notes a question. */
static __always_inline void flow_ask(struct flow_set *set, struct flow *flow)
{
	__u32 now = now_seconds();

	flow->used = ++set->few->clock;
	if (!flow_waits(flow, now)) {
		flow->asked = flow->used;
		flow->waiting = 0;
	}
	flow->waiting++;
	flow->second = now;
}

struct room_search {
	const struct more_flows *more;
	__u32 index;
	__u32 age;
	__u32 clock;
};

static long room_search_step(__u32 i, struct room_search *search)
{
	const struct flow *flow;
	__u32 age;

	if (i >= MORE_FLOWS)
		return 1;
	flow = &search->more->flow[i];
	if (flow_free(flow)) {
		search->index = i;
		return 1;
	}
	age = search->clock - flow->used;
	if (age > search->age) {
		search->age = age;
		search->index = i;
	}
	return 0;
}

/* Where there is room: the index of an entry that was given up or never used,
 * or of the flow that was used longest ago. */
__noinline __u32 room_index(const struct flows *few, const struct more_flows *more)
{
	struct room_search search = {};

	if (!few || !more)
		return 0;
	search.index = few->more;
	search.clock = few->clock;
	search.more = more;
	if (search.index < MORE_FLOWS)
		search.age = ~0U; /* only what was given up is better than a new one */
	bpf_loop(few->more, room_search_step, &search, 0);
	return search.index;
}

/* An entry for a new flow among the first few, which are looked at first: a free
 * one, or that of the flow used longest ago, which moves to the others. 0 if the
 * kernel has no memory for these. */
static __always_inline struct flow *flow_room(struct bpf_sock *sk, struct flow_set *set)
{
	struct flow *oldest, *moved;
	__u32 index;

	if (!set->few)
		set->few = bpf_sk_storage_get(&udp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!set->few)
		return 0;
	oldest = &set->few->flow[0];
	for (int i = 0; i < FLOWS; i++) {
		struct flow *flow = &set->few->flow[i];

		if (flow_free(flow))
			return flow;
		if ((__s32)(flow->used - oldest->used) < 0)
			oldest = flow;
	}
	if (!set->more)
		set->more = bpf_sk_storage_get(&more_udp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!set->more)
		return 0;
	index = room_index(set->few, set->more);
	if (index >= set->few->more && index < MORE_FLOWS)
		set->few->more = index + 1;
	barrier_var(index);
	moved = &set->more->flow[index & (MORE_FLOWS - 1)];
	if (!flow_free(moved))
		COUNT(flow_evicted);
	*moved = *oldest;
	return oldest;
}

/* Makes a flow and notes its first question. */
static __always_inline void flow_begin(struct bpf_sock *sk, struct flow_set *set,
				       const struct destination *service,
				       const struct destination *backend)
{
	struct flow *flow = flow_room(sk, set);

	if (!flow || !set->few) {
		COUNT(flow_failed); /* the datagram gets there all the same */
		return;
	}
	flow->service = service->address;
	flow->service_port = service->port;
	flow->backend = backend->address;
	flow->backend_port = backend->port;
	flow->slot = 0;
	flow->waiting = 0;
	flow_ask(set, flow);
}

static __always_inline void flow_ends(const struct flow *flow, struct destination *service,
				      struct destination *backend)
{
	destination_set(service, &flow->service, flow->service_port);
	destination_set(backend, &flow->backend, flow->backend_port);
}

/* Whether the tables still bear a flow out. */
static __always_inline int flow_holds(struct flow *flow)
{
	struct destination service, backend;

	flow_ends(flow, &service, &backend);
	return still_serves(&service, IPPROTO_UDP, &backend, &flow->slot);
}
