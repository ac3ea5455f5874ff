/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Next hops to clients. */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

/* A device and an IPv4 network. */
struct next_hop_key {
	__u32 prefixlen; /* 32 and the network's */
	__u32 device;
	__be32 address;
};
