/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The SNAT ports: of the node's address for clients outside the cluster, of a Service's address for
 * clients on this node. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_endian.h>

/* First and last ports of up to two ranges, set by the loader. */
const volatile __u16 snat_first[2] = {1024, 61000};
const volatile __u16 snat_count[2] = {28976, 4536};

static __always_inline __be16 snat_port(__u32 number)
{
	number %= (__u32)snat_count[0] + snat_count[1];
	if (number < snat_count[0])
		return bpf_htons(snat_first[0] + number);
	return bpf_htons(snat_first[1] + number - snat_count[0]);
}

/* Returns whether a port is a SNAT port. */
static __always_inline int snat_has(__be16 port)
{
	__u32 number = bpf_ntohs(port);

	return number - snat_first[0] < snat_count[0] || number - snat_first[1] < snat_count[1];
}
