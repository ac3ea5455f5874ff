/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layouts of the tables of Services, shared by the programs and the agent. bpf2go generates the Go
 * types of internal/bpf from them.
 *
 * Addresses are 16 bytes in network byte order; IPv4 addresses are IPv4-mapped (::ffff:a.b.c.d, RFC
 * 4291 section 2.5.5.2), so that both families take one code path. Ports are in network byte order.
 * All other numbers are in host byte order. Structures have no hidden padding, because they are
 * compared and hashed as bytes. */
#pragma once

#include <linux/types.h>

#include "set_table/types.h"

struct address {
	__u8 bytes[16];
} __attribute__((aligned(4)));

/* The destination of a client's packet or connection. Port 0 with protocol 0 matches every port and
 * protocol of the address that no other key names; port 0 with the protocol number of ICMP or
 * ICMPv6 matches its echo requests. */
struct frontend_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

/* The field of the object that a frontend comes from. Matches service.FrontendKind. */
enum frontend_kind {
	FRONTEND_CLUSTER_IP = 1,
	FRONTEND_CLUSTER_IP_OTHER,
	FRONTEND_NODE_PORT,
	FRONTEND_LOAD_BALANCER,
	FRONTEND_EXTERNAL_IP,
	FRONTEND_HOST_PORT,
	FRONTEND_ECHO, /* echo requests to a load balancer's or external IP */
};

/* Where a client is. Matches service.SourceClass. */
enum source_class {
	FROM_POD,
	FROM_NODE,
	FROM_OUTSIDE,
	SOURCE_CLASSES,
};

/* Matches service.Verdict. */
enum verdict {
	VERDICT_PASS,
	VERDICT_REJECT,
	VERDICT_DROP,
	VERDICT_BALANCE,
	VERDICT_ANSWER, /* reply to an ICMP echo request */
};

/* SO_MARK of the agent's own connections (health checks and the API server). Programs never
 * redirect them, even if the destination is a Service's address. The bits differ from those that
 * Kubernetes, Calico and Tailscale use. */
enum socket_mark {
	MARK_AGENT = 0x101e,
};

/* Mark of packets that the edge encapsulated at tc ingress, read at tc egress. A mark does not
 * survive leaving a pod, so a pod cannot set it. */
#define MARK_ENCAPSULATED 0x111e

/* A range of `slots`. */
struct slot_range {
	__u32 first, count;
};

/* The result for one class of clients: a backend set, which is the range of slots {first, count};
 * or, if count is 0, a verdict other than BALANCE.
 *
 * The slots of a set hold its members sorted by address and port, so that programs find a member by
 * binary search (lb/members.h). Those of a Maglev table (FRONTEND_MAGLEV) are filled by package
 * maglev: struct frontend_lists has its members in order. */
struct decision {
	union {
		__u32 first;
		enum verdict verdict;
	};
	__u32 count;
};

/* One cache line. A row never changes while the index refers to it: an update fills another row and
 * then changes the index atomically. */
struct frontend {
	struct frontend_key
		key;   /* compared with the key that was looked up: the index may have changed */
	__u32 service; /* ID in `services` */
	__u32 affinity_seconds; /* session affinity timeout; 0: no affinity */
	__u32 source_set;	/* ID in `source_ranges`; 0: any source is admitted */
	struct decision decisions[SOURCE_CLASSES];
	__u8 kind;   /* enum frontend_kind */
	__u8 dsr;    /* enum dsr: how packets reach a backend on another node */
	__u16 flags; /* enum frontend_flag */
	/* Row in `frontend_list_rows`, which has the number of this row; 0: the frontend has no
	 * lists.
	 */
	__u32 lists;
};

/* The lists of a frontend with Maglev tables, retained backends or a history. Packets of
 * established flows and most first packets need none of them. One cache line. Like the frontend's
 * row, it never changes while the index refers to that row. */
struct frontend_lists {
	/* The members of the set of each decision, sorted by address and port: the set itself, or a
	 * list beside a Maglev table, which has each member once. */
	struct slot_range members[SOURCE_CLASSES];
	/* Retained backends, sorted like a set. Existing flows keep them although they are not in
	 * every set: UDP flows while the backend serves (R29), connections without a conntrack
	 * entry while the backend exists (R30). */
	struct slot_range retained;
	/* With FRONTEND_HISTORY: one word per slot of an earlier table (enum history_word), and the
	 * frontend's enum dsr at that time. */
	struct slot_range history;
	__u32 history_dsr;
	__u32 reserved[5];
};

_Static_assert(sizeof(struct frontend) == 64, "a frontend's row is one cache line");
_Static_assert(sizeof(struct frontend_lists) == 64, "so is that of its lists");

enum frontend_flag {
	/* Shifted left by the source class. Only the agent reads it, for its reports: programs
	 * masquerade if the backend is on another node. */
	FRONTEND_MASQUERADE = 1,
	FRONTEND_LOOPBACK_EXACT = 8, /* matches 127.0.0.1 only, instead of 127.0.0.0/8 */
	FRONTEND_OWN_ADDRESS = 16,   /* the address is this node's, and `source_set` is not 0 */
	FRONTEND_MAGLEV = 32,	     /* the sets of `decisions` are Maglev tables */
	/* Packets of clients outside the cluster go to backends on other nodes without a conntrack
	 * entry, unless their slot of the table is contested. */
	FRONTEND_UNTRACKED = 64,
	/* Some slots are contested: flows without entries may use other backends than the table
	 * says. */
	FRONTEND_HISTORY = 128,
	/* Sockets of pods leave the destination to the packet path, which masquerades. */
	FRONTEND_BY_PACKET = 256,
};

/* Which packets from balancers this node decapsulates. */
enum dsr_accepted {
	DSR_ACCEPT_TUNNELS = 1, /* IPIP and Geneve */
	DSR_ACCEPT_OPTION = 2,	/* IP option: a Service here uses DSR_OPT */
};

/* What the edge checks before it looks up an untracked frontend or inspects an encapsulated packet.
 */
struct untracked_filter {
	/* One bit per address and port of each frontend with FRONTEND_UNTRACKED or
	 * FRONTEND_HISTORY, selected by the upper nine bits of endpoint_hash. A false positive
	 * costs one lookup. */
	__u64 bits[8];
	/* Changes whenever an index entry changes. Invalidates what programs have cached from the
	 * index. */
	__u32 epoch;
	enum dsr_accepted accepted; /* one or both */
};

/* Value in `balancers`: who may have sent an outer packet. The longest prefix wins. */
enum balancer {
	BALANCER = 1,
	BALANCER_OWN, /* this node itself: no packet comes from outside with its own address */
};

/* The history of one slot: the backend of flows without an entry (0: the backend in the table), and
 * whether the slot is contested, which means that such flows, or entries with other backends, may
 * exist. If the size of the table has changed since, or the frontend is no longer untracked, all
 * slots are contested. */
enum history_word {
	HISTORY_BACKEND = 0x7fffffff,
	HISTORY_CONTESTED = 0x80000000,
};

/* How a packet of a client outside the cluster reaches a backend on another node with the client's
 * address, so that the backend replies directly to the client (direct server return). encap/wire.h
 * describes the formats. */
enum dsr {
	DSR_NONE, /* no DSR: source NAT to this node's address */
	DSR_IPIP,
	DSR_GENEVE,
	DSR_OPT,
};

/* One cache line. A row never changes while a slot or an affinity entry refers to it. A free row is
 * all zeros; ID 0 is never used. */
struct backend {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 local;	     /* 1: the backend is on this node */
	struct address node; /* address of the backend's node, or the backend's own if the node is
				unknown */
	__u32 reserved[7];
};

/* A client of a Service with session affinity: its address or, for a socket, the cookie of its
 * network namespace with the IP version (byte 0 is then 0xff, which no source address has; RFC 4291
 * section 2.7). */
struct affinity_key {
	struct address client;
	__u32 service;
};

/* Half a cache line. */
struct affinity_entry {
	struct affinity_key key;
	__u32 backend;
	__u32 slot;	 /* position among the members when last seen: a hint */
	__u32 last_used; /* seconds, CLOCK_MONOTONIC */
};

struct affinity_set {
	struct set_tags tags;
	struct set_evictions evictions;
	struct affinity_entry entries[SET_PLACES];
	__u64 reserved[4];
};

_Static_assert(sizeof(struct affinity_set) % 64 == 0, "the tags of each set are one cache line");

/* Keys of LPM tries: prefixlen counts the bits of all that follows it. */
struct source_range_key {
	__u32 prefixlen;
	__u32 source_set;
	struct address address;
};

struct network_key {
	__u32 prefixlen;
	struct address address;
};

/* Value in `networks`: the kind of a prefix. */
enum network {
	NETWORK_SERVICE =
		1,   /* a ServiceCIDR: packets to addresses without a frontend are dropped */
	NETWORK_POD, /* pods of any node: they are not clients outside the cluster */
	NETWORK_OWN, /* an address of this node within a ServiceCIDR: left to the node's stack */
};

/* The name of a service ID, for users, and for restoring the IDs after a restart of the agent.
 * Strings end with a zero byte. */
struct service_name {
	__u8 owner_kind; /* 0: Service; 1: Pod (its hostPorts) */
	__u8 protocol;
	__u8 namespace[64];
	__u8 name[254];
	__u8 port[64];
};
