/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/types.h>

/* Length of every frame: Ethernet, IPv6 and TCP headers, or Ethernet, two IPv4 headers and TCP, and
 * some payload. */
#define FRAME_LENGTH 80

struct frame {
	__u64 words[FRAME_LENGTH / 8];
};
