/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stddef.h>

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Further in than this there are no headers that anyone reads. */
#define HEADERS_END 512

/* Of a VLAN tag's control information: which network the frame is of (IEEE 802.1Q). */
#define VLAN_ID	    0x0fff

/* Where a packet begins or ends: a field of the hook's argument, which the verifier
 * takes for a pointer only as it is loaded. The compiler, left alone, narrows it to
 * the field's 32 bits. */
#define PACKET_POINTER(ctx, field)                                              \
	({                                                                      \
		void *pointer_;                                                 \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                           \
			     : "=r"(pointer_)                                   \
			     : "r"(ctx), "i"(offsetof(typeof(*(ctx)), field))); \
		pointer_;                                                       \
	})

/* MAC addresses are at even places. The compiler, which is not told so, takes byte by byte. */
static __always_inline void mac_copy(void *to, const void *from)
{
	__u16 *t = to;
	const __u16 *f = from;

	t[0] = f[0];
	t[1] = f[1];
	t[2] = f[2];
}

static __always_inline int mac_equal(const void *a, const void *b)
{
	const __u16 *x = a, *y = b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]));
}

/* A length, of which the verifier is told that it is between two constants right where
 * it is used. Until Linux 6.8 it forgets what it knew of 32 bits that have been on the
 * stack, and until 6.11 it learns nothing from the one comparison that the compiler
 * makes of two. */
static __always_inline __u64 length_between(__u64 length, __u32 least, __u32 most)
{
	asm volatile("if %0 >= %1 goto +1\n"
		     "%0 = %1\n"
		     "if %0 <= %2 goto +1\n"
		     "%0 = %2"
		     : "+r"(length)
		     : "i"(least), "i"(most));
	return length;
}
