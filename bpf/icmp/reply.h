/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Replies that replace a packet: TCP RST and ICMP errors. They take the reverse path. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/types.h"
#include "packet/access.h"
#include "packet/csum.h"
#include "packet/packet.h"

#define REPLY_TTL 64

/* Rate and burst of ICMP errors, per CPU and budget. A rate of 0 means unlimited. Set by the
 * loader. */
const volatile __u32 icmp_per_second = 1000;
const volatile __u32 icmp_burst = 50;

/* linux/icmp.h requires headers of the target's C library. The first 8 octets of ICMP and ICMPv6
 * messages (RFC 792, RFC 4443 section 2.1). */
struct icmp_header {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 rest;
};

/* ICMP errors that the edge sends. */
enum icmp_error {
	ICMP_PORT_UNREACHABLE,
	ICMP_HOST_UNREACHABLE, /* IPv6: address unreachable */
	ICMP_NO_ROUTE,	       /* IPv4: network unreachable */
	ICMP_PROHIBITED,       /* communication administratively prohibited */
	ICMP_BEYOND_SCOPE,     /* IPv6: beyond scope of source address */
	ICMP_TIME_EXCEEDED,
	ICMP_TOO_BIG, /* IPv4: fragmentation needed */
};

/* An error quotes as much of a packet as fits the minimum MTU (RFC 4443 section 3.1; RFC 1812
 * section 4.3.2.3 for IPv4). */
#define ICMPV6_LENGTH 1280
#define ICMP_LENGTH   576

/* The limit of bpf_csum_diff in bytes (before Linux 6.13). */
#define SUM_MAX	      512

struct reply_buffer {
	__u8 bytes[ICMPV6_LENGTH + SUM_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reply_buffer);
} reply_buffers SEC(".maps");

/* Each budget has its own token bucket. Otherwise a flood of rejected packets would stop path MTU
 * discovery. */
enum icmp_budget {
	BUDGET_UNREACHABLE, /* unreachable, time exceeded */
	BUDGET_TOO_BIG,
	ICMP_BUDGETS,
};

/* The theoretical arrival time of the next error of each budget (enum icmp_budget): when all errors
 * so far would have been sent at the configured rate. Nanoseconds, CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ICMP_BUDGETS);
	__type(key, __u32);
	__type(value, __u64);
} icmp_buckets SEC(".maps");

/* Result of building a reply. */
enum reply_result {
	REPLY_SENT,
	REPLY_FAILED,	    /* the packet may be partly changed */
	REPLY_RATE_LIMITED, /* the rate limit is exceeded */
	REPLY_NO_TAILROOM,  /* the packet is unchanged, because it cannot be made longer */
};

/* The TOS of an ICMP error: that of the packet in question with precedence "internetwork control"
 * (RFC 1812 section 4.3.2.5), as the stack has it (icmp_send). */
#define TOS_MASK    0x1e
#define TOS_CONTROL 0xc0

/* Completes the IPv4 header of a reply as the stack writes it: an ICMP error may be fragmented, and
 * a segment may not. What may not needs no identification (RFC 6864). */
static __always_inline void reply_v4_kind(const struct packet *p, struct iphdr *ip)
{
	if (ip->protocol == IPPROTO_ICMP) {
		ip->tos = (p->tos & TOS_MASK) | TOS_CONTROL;
		ip->id = bpf_get_prandom_u32();
	} else {
		ip->frag_off = bpf_htons(IP_DONT_FRAGMENT);
	}
}

/* Writes the IP header of a reply. Returns the sum of the pseudo header (RFC 9293 section 3.1, RFC
 * 8200 section 8.1). */
static __always_inline __s64 reply_v4(const struct packet *p, void *at,
				      const struct address *source, __u8 protocol, __u32 length)
{
	__be32 rest[2] = {bpf_htonl(length), bpf_htonl(protocol)};
	struct iphdr *ip = at;

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tot_len = bpf_htons(sizeof(*ip) + length);
	ip->ttl = REPLY_TTL;
	ip->protocol = protocol;
	reply_v4_kind(p, ip);
	ip->saddr = address_to_v4(source);
	ip->daddr = address_to_v4(&p->tuple.source);
	ip->check = checksum_of(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
	return bpf_csum_diff(0, 0, rest, sizeof(rest),
			     bpf_csum_diff(0, 0, (__be32 *)&ip->saddr, 8, 0));
}

static __always_inline __s64 reply_v6(const struct packet *p, void *at,
				      const struct address *source, __u8 protocol, __u32 length)
{
	__be32 rest[2] = {bpf_htonl(length), bpf_htonl(protocol)};
	struct ipv6hdr *ip = at;

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(length);
	ip->hop_limit = REPLY_TTL;
	ip->nexthdr = protocol;
	__builtin_memcpy(&ip->saddr, source, sizeof(struct address));
	__builtin_memcpy(&ip->daddr, &p->tuple.source, sizeof(struct address));
	return bpf_csum_diff(0, 0, rest, sizeof(rest),
			     bpf_csum_diff(0, 0, (__be32 *)&ip->saddr, 32, 0));
}

/* Writes the header in the packet's family. Returns the sum of the pseudo header. */
static __always_inline __s64 reply_header(const struct packet *p, struct reply_buffer *reply,
					  const struct address *source, __u8 protocol, __u32 length)
{
	if (p->is_v6)
		return reply_v6(p, reply->bytes, source, protocol, length);
	return reply_v4(p, reply->bytes, source, protocol, length);
}

/* Reads the Ethernet header, if there is one, with its MAC addresses swapped. */
static __always_inline int link_header_reversed(struct context *ctx, struct ethhdr *eth)
{
	__u8 mac[ETH_ALEN];

	if (!LINK_HEADER)
		return 0;
	if (packet_load(ctx, 0, eth, sizeof(*eth)))
		return -1;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return 0;
}

static __always_inline int link_header_store(struct context *ctx, const struct ethhdr *eth)
{
	return LINK_HEADER ? packet_store(ctx, 0, eth, sizeof(*eth)) : 0;
}

/* Replaces the packet by the reply in the buffer. `p` is the packet, or one that it quotes. */
static __always_inline enum reply_result reply_write(struct context *ctx, const struct packet *p,
						     const struct reply_buffer *reply, __u32 length)
{
	struct ethhdr eth;

	if (length > ICMPV6_LENGTH || link_header_reversed(ctx, &eth))
		return REPLY_FAILED;
	if (packet_resize(ctx, p, LINK_HEADER + length))
		return REPLY_NO_TAILROOM;
	if (packet_store(ctx, LINK_HEADER, reply, length_between(length, 28, ICMPV6_LENGTH)) ||
	    link_header_store(ctx, &eth))
		return REPLY_FAILED;
	return REPLY_SENT;
}

/* RFC 9293 section 3.10.7.1. */
static __always_inline enum reply_result reply_tcp_reset(struct context *ctx,
							 const struct packet *p)
{
	__u32 ip_length = p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr), zero = 0;
	struct reply_buffer *reply = bpf_map_lookup_elem(&reply_buffers, &zero);
	struct tcphdr asked, *tcp;
	__u32 payload;
	__s64 pseudo;

	if (!reply || packet_load(ctx, p->l4, &asked, sizeof(asked)))
		return REPLY_FAILED;
	payload = p->length - (p->l4 - p->l3) - asked.doff * 4;
	tcp = (void *)(p->is_v6 ? reply->bytes + sizeof(struct ipv6hdr)
				: reply->bytes + sizeof(struct iphdr));
	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = asked.dest;
	tcp->dest = asked.source;
	tcp->doff = sizeof(*tcp) / 4;
	tcp->rst = 1;
	if (asked.ack) {
		tcp->seq = asked.ack_seq;
	} else {
		tcp->ack = 1;
		tcp->ack_seq = bpf_htonl(bpf_ntohl(asked.seq) + asked.syn + asked.fin + payload);
	}
	pseudo = reply_header(p, reply, &p->tuple.destination, IPPROTO_TCP, sizeof(*tcp));
	tcp->check = checksum_of(bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), pseudo));
	return reply_write(ctx, p, reply, ip_length + sizeof(*tcp));
}

/* Takes a token from the bucket of an error. Returns whether there was one. Not atomic: no other
 * packet is handled on this CPU meanwhile. */
static __always_inline int icmp_rate_allows(enum icmp_error error)
{
	__u32 budget = error == ICMP_TOO_BIG ? BUDGET_TOO_BIG : BUDGET_UNREACHABLE;
	__u64 now = bpf_ktime_get_ns(), each;
	__u64 *sent = bpf_map_lookup_elem(&icmp_buckets, &budget);

	if (!icmp_per_second)
		return 1;
	each = 1000000000ull / icmp_per_second;
	if (!sent || *sent + each > now + icmp_burst * each)
		return 0;
	*sent = (*sent > now ? *sent : now) + each;
	return 1;
}

static __always_inline void icmp_header_of(struct icmp_header *icmp, int is_v6,
					   enum icmp_error error, __u32 mtu)
{
	__builtin_memset(icmp, 0, sizeof(*icmp));
	switch (error) {
	case ICMP_PORT_UNREACHABLE:
		icmp->type = is_v6 ? 1 : 3;
		icmp->code = is_v6 ? 4 : 3;
		break;
	case ICMP_HOST_UNREACHABLE:
		icmp->type = is_v6 ? 1 : 3;
		icmp->code = is_v6 ? 3 : 1;
		break;
	case ICMP_NO_ROUTE:
		icmp->type = is_v6 ? 1 : 3;
		break;
	case ICMP_PROHIBITED:
		icmp->type = is_v6 ? 1 : 3;
		icmp->code = is_v6 ? 1 : 13;
		break;
	case ICMP_BEYOND_SCOPE:
		icmp->type = 1;
		icmp->code = 2;
		break;
	case ICMP_TIME_EXCEEDED:
		icmp->type = is_v6 ? 3 : 11;
		break;
	case ICMP_TOO_BIG:
		icmp->type = is_v6 ? 2 : 3;
		icmp->code = is_v6 ? 0 : 4;
		icmp->rest = bpf_htonl(mtu);
		break;
	}
}

/* Returns the sum of a message in a buffer with at least SUM_MAX bytes after it. */
static __always_inline __s64 sum_of(void *at, __u32 length, __s64 sum)
{
	__u32 done = 0;

	/* Pad the last piece with zeros to a full word. */
	if (length > ICMPV6_LENGTH)
		return -1;
	__builtin_memset(at + length_between(length, 0, ICMPV6_LENGTH), 0, sizeof(__u32));
	for (int i = 0; i < (ICMPV6_LENGTH + SUM_MAX - 1) / SUM_MAX; i++) {
		__u32 left = (length - done + 3) & ~3u;

		if (left > SUM_MAX)
			left = SUM_MAX;
		if (done < length)
			sum = bpf_csum_diff(0, 0, at + done, length_between(left, 0, SUM_MAX), sum);
		done += SUM_MAX;
		if (done >= length || sum < 0)
			break;
	}
	return sum;
}

/* Replaces the packet by an ICMP error about it (RFC 792, RFC 4443 section 3). Returns enum
 * reply_result. Global function: the verifier checks it once, and not for each path to a call. */
__noinline int reply_icmp_error(struct context *ctx, const struct packet *p,
				const struct address *source, enum icmp_error error, __u32 mtu)
{
	__u32 ip_length, most, quoted, length, zero = 0;
	struct icmp_header *icmp;
	struct reply_buffer *reply;
	__s64 sum;

	if (!p || !source)
		return REPLY_FAILED;
	ip_length = p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	most = (p->is_v6 ? ICMPV6_LENGTH : ICMP_LENGTH) - ip_length - sizeof(struct icmp_header);
	reply = bpf_map_lookup_elem(&reply_buffers, &zero);
	quoted = p->length;
	if (!icmp_rate_allows(error))
		return REPLY_RATE_LIMITED;
	if (quoted > most)
		quoted = most;
	if (!reply || quoted < 28 || quoted > ICMPV6_LENGTH)
		return REPLY_FAILED;
	icmp = (void *)(p->is_v6 ? reply->bytes + sizeof(struct ipv6hdr)
				 : reply->bytes + sizeof(struct iphdr));
	icmp_header_of(icmp, p->is_v6, error, mtu);
	if (packet_load(ctx, p->l3, icmp + 1, length_between(quoted, 28, ICMPV6_LENGTH)))
		return REPLY_FAILED;
	length = sizeof(*icmp) + quoted;
	sum = reply_header(p, reply, source, p->is_v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP, length);
	/* Only ICMPv6's checksum covers a pseudo header. */
	sum = sum_of(icmp, length, p->is_v6 ? sum : 0);
	if (sum < 0)
		return REPLY_FAILED;
	icmp->checksum = checksum_of(sum);
	return reply_write(ctx, p, reply, ip_length + length);
}
