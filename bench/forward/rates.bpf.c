// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* Both ends of a path through a balancer: a generator that BPF_PROG_TEST_RUN runs with live frames,
 * a sink at the device where packets come back, and the minimal program between them. The sink
 * counts a packet before the generator sends the next one of the window, so no queue on the path is
 * too short: a lost packet was dropped by a program. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define context xdp_md

#include "frame.h"
#include "minimal.h"
#include "outer.h"
#include "records.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frame);
} rate_frames SEC(".maps");

/* How many bytes of a packet the sink reads: Ethernet and two IP headers, or one and the ports. */
#define LOOKED_AT 56

/* What returning packets have in common, where `mask` has bits. */
struct likeness {
	__u64 mask[LOOKED_AT / 8];
	__u64 value[LOOKED_AT / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct likeness);
} rate_likeness SEC(".maps");

/* Size of the buffers of returned packets, a power of two; packets of this length or longer are not
 * kept. */
#define KEPT 128

struct kept {
	__u32 length;
	__u8 bytes[KEPT];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kept);
} rate_kept SEC(".maps");

/* Output device of the generator, the range of its frames, and the next frame. */
__u32 device, first_frame, frame_count, next_frame;
/* Packets to send, the maximum in flight, and the number in flight at which sending resumes. */
__u64 wanted, window, low;
/* When the first packet was sent (CLOCK_MONOTONIC), and the interval to each next one; 0: as soon
 * as the window allows. None are sent from `until` on, which is `limit` after the first. */
__u64 begin, interval, limit, until;
/* Packets sent, and how many of them the generator knows to be back. */
__u64 sent, known;
/* The window is full, and not down to `low` yet. */
__u32 waiting;

/* In separate sections, because the other CPU writes here. */
__u64 arrived SEC(".data.sink"), strange SEC(".data.sink");
/* Arrival time of the last packet of every 16. */
__u64 latest SEC(".data.sink");
/* How many packets to keep. */
__u32 keep SEC(".data.sink");

static __always_inline int due(void)
{
	__u64 back, now;

	if (sent >= wanted)
		return 0;
	if (waiting) {
		back = *(volatile __u64 *)&arrived + *(volatile __u64 *)&strange;
		if (sent - back > low)
			return 0;
		known = back;
		waiting = 0;
	}
	if (sent - known >= window) {
		waiting = 1;
		return 0;
	}
	/* Reading the clock costs as much as half a packet: once for eight packets. */
	if (sent % 8)
		return 1;
	now = bpf_ktime_get_ns();
	if (!begin) {
		begin = now;
		until = now + limit;
	}
	if (now >= until) {
		wanted = 0;
		return 0;
	}
	return now >= begin + sent * interval;
}

SEC("xdp")
int rates_generate(struct xdp_md *ctx)
{
	__u64 *data = PACKET_POINTER(ctx, data), *end = PACKET_POINTER(ctx, data_end);
	const struct frame *frame;
	__u32 at;

	if (!due())
		return XDP_DROP;
	at = first_frame + next_frame;
	frame = bpf_map_lookup_elem(&rate_frames, &at);
	if (!frame || data + FRAME_LENGTH / 8 > end)
		return XDP_ABORTED;
	for (int i = 0; i < FRAME_LENGTH / 8; i++)
		data[i] = frame->words[i];
	next_frame = next_frame + 1 < frame_count ? next_frame + 1 : 0;
	sent++;
	return bpf_redirect(device, 0);
}

static __always_inline void keep_one(struct xdp_md *ctx, __u32 at)
{
	struct kept *kept = bpf_map_lookup_elem(&rate_kept, &at);
	__u64 length = PACKET_POINTER(ctx, data_end) - PACKET_POINTER(ctx, data);

	if (!kept || length >= KEPT)
		return;
	length &= KEPT - 1;
	asm volatile("" : "+r"(length)); /* keeps the verifier's bounds in this register */
	if (!length)
		return;
	kept->length = length;
	bpf_xdp_load_bytes(ctx, 0, kept->bytes, length);
}

SEC("xdp")
int rates_sink(struct xdp_md *ctx)
{
	__u64 *data = PACKET_POINTER(ctx, data), *end = PACKET_POINTER(ctx, data_end);
	struct ethhdr *eth = (void *)data;
	struct iphdr *ip = (void *)(eth + 1);
	__u32 zero = 0;
	const struct likeness *likeness = bpf_map_lookup_elem(&rate_likeness, &zero);
	__u64 differs = 0;

	/* Neighbour discovery is not counted. */
	if (!likeness || data + LOOKED_AT / 8 > end || eth->h_proto != bpf_htons(ETH_P_IP) ||
	    (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_IPIP))
		return XDP_PASS;
	for (int i = 0; i < LOOKED_AT / 8; i++)
		differs |= (data[i] & likeness->mask[i]) ^ likeness->value[i];
	if (arrived + strange < keep)
		keep_one(ctx, arrived + strange);
	if (differs)
		strange++;
	else
		arrived++;
	if (arrived % 16 == 0)
		latest = bpf_ktime_get_ns();
	return XDP_DROP;
}

SEC("xdp")
int rates_minimal(struct xdp_md *ctx)
{
	return minimal(ctx) ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int rates_redirect(struct xdp_md *ctx)
{
	return minimal(ctx) ? bpf_redirect(ctx->ingress_ifindex, 0) : XDP_PASS;
}

SEC("xdp")
int rates_records(struct xdp_md *ctx)
{
	return minimal_record(ctx) && minimal(ctx) ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int rates_encapsulate(struct xdp_md *ctx)
{
	struct ethhdr *eth = PACKET_POINTER(ctx, data), before;
	void *end = PACKET_POINTER(ctx, data_end);
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *l4 = (void *)(ip + 1);
	const struct minimal_backend *backend;
	struct outer *outer;
	__be16 length;

	if ((void *)(l4 + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	backend = minimal_choose_v4(ip, l4);
	if (!backend)
		return XDP_PASS;
	before = *eth;
	length = ip->tot_len;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)))
		return XDP_DROP;
	outer = PACKET_POINTER(ctx, data);
	if ((void *)(outer + 1) > PACKET_POINTER(ctx, data_end))
		return XDP_DROP;
	outer_fill(outer, &before, length, backend);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
