// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Explains a connect(2) with the functions of the hooks (sock/connect_policy.h). The kernel cannot
 * test-run cgroup programs, so this is a tc program, which the agent's commands test-run with the
 * pinned tables. Its packet does not matter. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "sock/connect_policy.h"
#include "sock/types.h"

/* Keeps the type in the BTF for the agent: no variable has it. */
const enum connect_reason *unused_connect_reason __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct connect_explanation);
} connect_explained SEC(".maps");

/* Returns the verdict for a call, and sets *d to the backend. */
static __always_inline enum verdict explain_call(struct connect_call *call, struct destination *d)
{
	enum verdict verdict;

	if (!connect_serves(call->protocol))
		return connect_passes(call, CONNECT_PROTOCOL);
	verdict = connect_frontend(call, d);
	return verdict == VERDICT_BALANCE ? connect_select(call, d) : verdict;
}

SEC("tc")
int beeline_explain(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	struct connect_explanation *e = bpf_map_lookup_elem(&connect_explained, &zero);
	struct connect_call call = {};
	struct destination d;

	if (!e)
		return 0;
	call.caller.netns_cookie = e->netns_cookie;
	call.source = e->source;
	call.protocol = e->protocol;
	destination_set(&d, &e->destination, e->port);
	e->verdict = explain_call(&call, &d);
	e->reason = call.reason;
	e->class = e->netns_cookie == host_netns_cookie ? FROM_NODE : FROM_POD;
	if (call.frontend)
		e->frontend = call.frontend->key;
	if (call.backend) {
		e->backend = call.backend;
		e->affinity = affinity_of(call.frontend, call.class, &call.client);
		e->destination = d.address;
		e->port = d.port;
	}
	e->done = 1;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
