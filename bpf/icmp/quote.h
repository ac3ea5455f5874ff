/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about translated packets: the quoted packet is translated back, so that the sender of
 * that packet recognises it (RFC 792, RFC 4443; RFC 5508 section 4 for translators). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/types.h"
#include "icmp/reply.h"
#include "lb/address.h"
#include "lb/types.h"
#include "packet/access.h"
#include "packet/csum.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "state/scratch.h"

/* How many bytes of the quoted packet are translated: an IP header with options or a few extension
 * headers, and the quoted part of layer 4 with ports and checksum. */
#define QUOTE_MAX	   128

/* Bytes of layer 4: what every error quotes, and what includes TCP's checksum. */
#define QUOTE_PORTS	   8
#define QUOTE_TCP_CHECKSUM (offsetof(struct tcphdr, check) + sizeof(__sum16))

#define ICMP_REDIRECT	   5

struct quote {
	__u8 before[QUOTE_MAX];
	__u8 after[QUOTE_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quote);
} quotes SEC(".maps");

static __always_inline int is_icmp(const struct packet *p)
{
	return p->tuple.protocol == (p->is_v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

/* Returns whether a message is an error: only errors quote a packet. */
static __always_inline int is_icmp_error(__u8 protocol, __u8 type)
{
	if (protocol == IPPROTO_ICMPV6)
		return type >= 1 && type <= 4;
	return type == 3 || type == 4 || type == ICMP_REDIRECT || type == 11 || type == 12;
}

/* A redirect names a gateway on the link of the host that receives it (RFC 1122 section 3.2.2.2),
 * so it is meaningless on other links. ICMPv6 redirects are not errors, but neighbour discovery,
 * which routers do not forward (RFC 4861 section 8.1). */
static __always_inline int is_redirect(struct context *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = packet_bytes(ctx, p->l4, sizeof(*icmp));

	return icmp && p->tuple.protocol == IPPROTO_ICMP && icmp->type == ICMP_REDIRECT;
}

/* Parses the quoted packet, which may have only 8 octets of layer 4. Also sets quoted->l3 for a
 * packet without ports; 0 if none is quoted. */
static __always_inline int quote_parse(struct context *ctx, const struct packet *outer,
				       struct packet *quoted)
{
	const struct icmp_header *icmp = packet_bytes(ctx, outer->l4, sizeof(*icmp));
	const __be16 *ports;
	enum parsed parsed;

	if (!icmp || !is_icmp_error(outer->tuple.protocol, icmp->type))
		return 0;
	quoted->l3 = outer->l4 + sizeof(*icmp);
	parsed = outer->is_v6 ? parse_v6(ctx, quoted) : parse_quoted_v4(ctx, quoted);
	if (parsed == PARSED_OTHER)
		return 0;
	ports = packet_bytes(ctx, quoted->l4, 8);
	if (parsed != PARSED || quoted->fragment == FRAGMENT_LATER || !ports) {
		quoted->l3 = 0;
		return 0;
	}
	quoted->tuple.source_port = ports[0];
	quoted->tuple.destination_port = ports[1];
	return 1;
}

/* Returns how many bytes of the quoted packet are translated, from its IP header on. */
static __always_inline __u32 quote_length(struct context *ctx, const struct packet *outer,
					  const struct packet *quoted)
{
	__u32 header = quoted->l4 - quoted->l3;
	__u32 end = quoted->l4 + QUOTE_TCP_CHECKSUM;

	if (quoted->tuple.protocol == IPPROTO_TCP && header + QUOTE_TCP_CHECKSUM <= QUOTE_MAX &&
	    end <= outer->l3 + outer->length && end <= packet_length(ctx))
		return header + QUOTE_TCP_CHECKSUM;
	return header + QUOTE_PORTS;
}

/* Adds a difference to a quoted checksum. */
static __always_inline void quote_checksum(__u8 *at, __u8 protocol, __s64 difference)
{
	__sum16 check;

	if (difference < 0)
		return;
	__builtin_memcpy(&check, at, sizeof(check));
	if (protocol == IPPROTO_UDP && !check)
		return; /* the sender computed none (RFC 768) */
	check = checksum_plus(check, difference);
	if (protocol == IPPROTO_UDP && !check)
		check = 0xffff;
	__builtin_memcpy(at, &check, sizeof(check));
}

/* Restores the tuple that the quoted packet had before it was translated. */
static __always_inline int quote_rewrite(const struct packet *quoted, const struct tuple *was,
					 struct quote *quote, __u32 length)
{
	__u32 at = quoted->l4 - quoted->l3;
	__s64 addresses;
	__u8 *l4;

	__builtin_memcpy(quote->after, quote->before, QUOTE_MAX);
	if (quoted->is_v6) {
		struct ipv6hdr *ip = (void *)quote->after;

		__builtin_memcpy(&ip->saddr, &was->source, sizeof(struct address));
		__builtin_memcpy(&ip->daddr, &was->destination, sizeof(struct address));
	} else {
		struct iphdr *ip = (void *)quote->after;

		addresses = bpf_csum_diff((__be32 *)&quoted->tuple.source, 32,
					  (__be32 *)&was->source, 32, 0);
		if (addresses < 0)
			return -1;
		ip->saddr = address_to_v4(&was->source);
		ip->daddr = address_to_v4(&was->destination);
		ip->check = checksum_plus(ip->check, addresses);
	}
	if (at > QUOTE_MAX - QUOTE_PORTS)
		return -1;
	l4 = quote->after + length_between(at, 0, QUOTE_MAX - QUOTE_PORTS);
	__builtin_memcpy(l4, &was->source_port, 4);
	if (quoted->tuple.protocol == IPPROTO_UDP)
		quote_checksum(l4 + offsetof(struct udphdr, check), IPPROTO_UDP,
			       bpf_csum_diff((__be32 *)&quoted->tuple, 36, (__be32 *)was, 36, 0));
	else if (length == at + QUOTE_TCP_CHECKSUM)
		quote_checksum(quote->after + length_between(at + offsetof(struct tcphdr, check), 0,
							     QUOTE_MAX - sizeof(__sum16)),
			       IPPROTO_TCP,
			       bpf_csum_diff((__be32 *)&quoted->tuple, 36, (__be32 *)was, 36, 0));
	return 0;
}

/* Translates an ICMP error. `key` is the tuple of the direction in which the error travels, `ct`
 * its entry. After an error drop the packet: it may be partly changed. */
static __always_inline int icmp_translate(struct context *ctx, struct scratch *w,
					  const struct tuple *key, const struct ct_entry *ct)
{
	struct packet *outer = &w->packet;
	__u32 length = quote_length(ctx, outer, &w->quoted), zero = 0;
	struct quote *quote = bpf_map_lookup_elem(&quotes, &zero);
	struct tuple was;
	__s64 sum;

	if (!quote || length < 28 || length > QUOTE_MAX)
		return -1;
	__builtin_memset(quote->before, 0, QUOTE_MAX);
	if (packet_load(ctx, w->quoted.l3, quote->before, length_between(length, 28, QUOTE_MAX)))
		return -1;
	tuple_reverse(&ct->xlate, &was);
	if (quote_rewrite(&w->quoted, &was, quote, length))
		return -1;
	sum = bpf_csum_diff((__be32 *)quote->before, QUOTE_MAX, (__be32 *)quote->after, QUOTE_MAX,
			    0);
	w->out.to = outer->tuple;
	w->out.to.destination = ct->xlate.destination;
	/* As by the stack: where the source of the flow's packets is translated, so is the host
	 * that reports. */
	if (!address_equal(&ct->xlate.source, &key->source) ||
	    ct->xlate.source_port != key->source_port)
		w->out.to.source = ct->xlate.source;
	if (sum < 0 ||
	    packet_store(ctx, w->quoted.l3, quote->after, length_between(length, 28, QUOTE_MAX)) ||
	    packet_checksum(ctx, outer->l4 + offsetof(struct icmp_header, checksum), sum))
		return -1;
	if (!outer->is_v6)
		return 0;
	sum = bpf_csum_diff((__be32 *)&outer->tuple.source, 32, (__be32 *)&w->out.to.source, 32, 0);
	return packet_checksum(ctx, outer->l4 + offsetof(struct icmp_header, checksum), sum);
}
