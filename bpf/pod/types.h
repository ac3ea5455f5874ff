/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layout of the pod shortcut's tables. The agent fills them, except for the counters. */
#pragma once

#include <linux/types.h>

/* A pod of this node. Its key in `pods` is its address. */
struct pod {
	__u32 device; /* index of the node's end of the pod's device */
	/* The smaller one of that device's and of a route's to the pod, in bytes from the IP header
	 * on. */
	__u16 mtu;
	__u8 mac[6];	 /* of the pod's end; zeros: not known */
	__u8 gateway[6]; /* the source of frames to the pod: of the node's end, or of its bridge */
	__u8 l3;	 /* frames have no MAC addresses, but zeros */
	__u8 withheld;	 /* new flows take the stack, because of a packet filter */
};

/* What is behind a device with the program. */
enum pod_role {
	POD_ROLE_PODS = 1, /* pods of this node */
	POD_ROLE_NODES,	   /* other nodes and their pods */
};

struct pod_device {
	__u8 mac[6]; /* the destination of frames that the node routes: of the device, or of its
			bridge */
	__u8 role;   /* enum pod_role */
	/* The larger of net.ipv4.conf.all.rp_filter and that of the device, or of its bridge. */
	__u8 rp_filter;
};

/* Where a packet went, and for the stack why. The agent reads the names from the BTF. */
enum pod_path {
	POD_PATH_LOCAL,	       /* from a pod to another pod of this node */
	POD_PATH_IN,	       /* from another node to a pod of this node */
	POD_PATH_OUT,	       /* from a pod of this node to another node */
	POD_PATH_TOO_BIG,      /* exceeds the MTU to another node; replied with an ICMP error */
	POD_STACK_OTHER,       /* not unicast between pods, or a protocol without a shortcut */
	POD_STACK_SOURCE,      /* the source is no pod behind the device */
	POD_STACK_DESTINATION, /* the destination is neither a pod nor in a pod network */
	POD_STACK_SERVICE,     /* to a Service, or of a flow of the edge */
	POD_STACK_KERNEL_FLOW, /* of a flow that the kernel's conntrack has */
	POD_STACK_ROUTE,       /* no route by a device with the program, TTL used up, or too big */
	POD_STACK_UNSEARCHED,  /* no recent search for packet filters (struct pod_lease) */
	POD_STACK_WITHHELD,    /* a packet filter concerns a pod */
	POD_PATHS,
};

struct pod_counters {
	__u64 count[POD_PATHS];
};

/* How long the shortcut may be used without another search for packet filters. Each search that
 * the agent has completed extends it. Without an agent the shortcut ends by it. */
struct pod_lease {
	__u32 until; /* second of CLOCK_MONOTONIC; 0xffffffff: for ever */
};

/* What is remembered of a flow of the shortcut. The key is its tuple as its opener sends it. */
struct pod_record {
	__u32 since; /* second of its first packet */
	__u32 seen;  /* second of the last decision about one of its packets */
	__u32 flags; /* enum pod_record_flag */
};

enum pod_record_flag {
	POD_REPLIED = 1,   /* the other end has sent a packet */
	POD_FIN = 2,	   /* the opener has closed its direction */
	POD_FIN_REPLY = 4, /* the other end has */
	POD_FIN_BOTH = POD_FIN | POD_FIN_REPLY,
};
