// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* A balancer by sockmap: data that arrives on one of two connections is forwarded on the other,
 * without user space. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* By socket cookie: the socket that forwards what arrives. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u64);
} sockmap_peers SEC(".maps");

struct sockmap_counters {
	__u64 segments, bytes; /* forwarded */
	__u64 lost;	       /* segments dropped because the other connection was gone */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sockmap_counters);
} sockmap_counts SEC(".maps");

SEC("sk_skb/stream_verdict")
int sockmap_relay(struct __sk_buff *skb)
{
	__u64 socket = bpf_get_socket_cookie(skb);
	__u32 zero = 0;
	struct sockmap_counters *counters = bpf_map_lookup_elem(&sockmap_counts, &zero);
	int verdict;

	/* User space forwards a FIN. The kernel treats a segment without payload as an error of the
	 * other connection (sk_psock_backlog). */
	if (!skb->len || !counters)
		return SK_DROP;
	verdict = bpf_sk_redirect_hash(skb, &sockmap_peers, &socket, 0);
	if (verdict == SK_PASS) {
		counters->segments++;
		counters->bytes += skb->len;
	} else {
		counters->lost++;
	}
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
