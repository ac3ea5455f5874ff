/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layouts of the flow cache, shared by the programs and the agent. */
#pragma once

#include <linux/types.h>

#include "packet/types.h"
#include "set_table/types.h"

/* Which packets are of a flow: those of one direction that arrive by one device, and by a tunnel in
 * external mode with one key. */
struct offload_key {
	struct tuple tuple;
	__u32 device; /* input device */
	__u32 tunnel; /* the tunnel's key plus 1; 0: by no tunnel in external mode */
};

enum offload_state {
	OFFLOAD_ACTIVE = 1,
	/* The program has returned the flow to the stack; the agent deletes the entry. */
	OFFLOAD_CLOSED,	   /* FIN or RST */
	OFFLOAD_UNTRACKED, /* the kernel's conntrack no longer has the flow, translates it
			      otherwise, or has another mark */
	OFFLOAD_REROUTED,  /* the route or the next hop has changed */
	OFFLOAD_OUTDATED,  /* of another epoch */
};

enum offload_flag {
	OFFLOAD_TRANSLATE = 1, /* addresses or ports change */
	OFFLOAD_L3 = 2,	       /* the output device has no MAC addresses */
	OFFLOAD_TUNNEL = 4,    /* the output device takes the outer addresses from `tunnel` */
};

/* The outer header of packets that leave by a tunnel in external mode, as in struct bpf_tunnel_key.
 */
struct offload_tunnel {
	__u32 id;
	__u32 remote[4]; /* IPv4: the first word, in host byte order */
	__u32 local[4];
	__u32 label;
	__u8 tos;
	__u8 ttl; /* 0: the device's default */
	__u8 is_v6;
	__u8 flags; /* enum offload_tunnel_flag */
};

enum offload_tunnel_flag {
	OFFLOAD_TUNNEL_CHECKSUM = 1,
	OFFLOAD_TUNNEL_DONT_FRAGMENT = 2,
};

/* One direction of a flow. The agent writes it, except for what is said. Ticks are those of
 * set_table/set_table.h. */
struct offload_flow {
	struct offload_key key;
	__u32 epoch;	 /* of offload_control when the flow was learned */
	__u32 last_seen; /* tick of the last packet; written by the program */
	__u32 checked;	 /* tick of the last check; written by the program */
	__u8 state;	 /* enum offload_state; written by the program, too */
	__u8 flags;	 /* enum offload_flag */
	__u16 mtu;	 /* of the route, in bytes; 0: not checked yet; written by the program */
	struct tuple to; /* the tuple after translation */
	__u32 device;	 /* output device */
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__u32 timeout;	 /* of the kernel's conntrack entry, in milliseconds */
	__u16 route_mtu; /* the MTU that the route sets, in bytes; 0: none */
	__u16 mark;	 /* hash of the mark of the kernel's conntrack entry */
	__u64 packets;	 /* written by the program; segments that were merged count as one */
	__u64 bytes;	 /* from the IP header on, as merged */
	__u32 learned;	 /* tick at which the program learned the flow */
	struct offload_tunnel tunnel;
};

/* One set of the flow cache; its tags are in `offload_tags`. */
struct offload_set {
	struct offload_flow flows[SET_PLACES];
};

_Static_assert(sizeof(struct offload_flow) == 192,
	       "three cache lines, of which most packets need two");

/* What the programs need to know of a device. */
enum offload_device {
	OFFLOAD_DEVICE_EXTERNAL = 1, /* a tunnel in external mode: its key is in each packet */
	OFFLOAD_DEVICE_IN_VRF = 2,   /* the stack takes its packets for those of the VRF */
	OFFLOAD_DEVICE_STRICT = 4,   /* the effective net.ipv4.conf.*.rp_filter is 1 */
};

/* Written by the agent. */
struct offload_control {
	__u32 epoch;		  /* flows of another epoch take the stack */
	__u32 threshold;	  /* packets of one direction before the flow is a candidate */
	__u32 udp_stream_timeout; /* of the kernel's conntrack, in milliseconds */
	__u32 reserved;
};

/* Packets of a flow on the stack, to find candidates. */
struct offload_count {
	__u32 hash; /* of the key */
	__u32 count;
	__u32 next; /* the count at which the flow is looked at again */
	__u32 tick; /* of the last packet */
};

/* Where a packet went, and for the stack why. The agent reads the names from the BTF. */
enum offload_path {
	OFFLOAD_PATH_CACHE,	   /* forwarded by the program */
	OFFLOAD_PATH_UNSUPPORTED,  /* of such a flow, but TTL used up, too big, or for another host
				    */
	OFFLOAD_PATH_CLOSING,	   /* FIN or RST */
	OFFLOAD_PATH_RETURNED,	   /* the check has returned the flow to the stack */
	OFFLOAD_PATH_CANDIDATE,	   /* on the stack, and its flow was reported as candidate */
	OFFLOAD_PATH_NOT_REPORTED, /* the same, but the agent is behind */
	OFFLOAD_PATHS,
};

struct offload_counters {
	__u64 packets[OFFLOAD_PATHS];
	__u64 bytes; /* of OFFLOAD_PATH_CACHE, as offload_flow.bytes */
};

/* Why the program does not propose a flow. */
enum offload_refusal {
	OFFLOAD_PROPOSED,
	OFFLOAD_NOT_ESTABLISHED, /* TCP not established, UDP not seen in both directions */
	OFFLOAD_HELPER, /* a conntrack helper, an adjustment of sequence numbers, or a SYN proxy */
	OFFLOAD_IN_FLOWTABLE, /* in a flowtable of netfilter */
	/* the key of a tunnel in external mode is not known, or the outer header has options */
	OFFLOAD_UNKNOWN_TUNNEL,
	OFFLOAD_UNKNOWN_DEVICE, /* arrived by a device without the program */
	OFFLOAD_REFUSALS,
};

struct offload_candidate {
	struct offload_flow flow;
	__u32 refusal; /* enum offload_refusal */
	__u32 reserved;
};
