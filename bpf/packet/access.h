/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stddef.h>

#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Headers are not read beyond this offset, in bytes. */
#define HEADERS_END 512

/* The length of the link-layer header that a packet begins with. The packets of a device without
 * MAC addresses begin with the IP header: an object with L3_DEVICE is for these. */
#ifdef L3_DEVICE
#define LINK_HEADER 0
#else
#define LINK_HEADER ((__u32)sizeof(struct ethhdr))
#endif

/* The VLAN identifier in a tag's control information (IEEE 802.1Q). */
#define VLAN_ID 0x0fff

/* Loads a packet pointer from a field of the hook's context. The verifier recognises the value as a
 * pointer only if the field is loaded directly; otherwise the compiler narrows it to the field's 32
 * bits. */
#define PACKET_POINTER(ctx, field)                                              \
	({                                                                      \
		void *pointer_;                                                 \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                           \
			     : "=r"(pointer_)                                   \
			     : "r"(ctx), "i"(offsetof(typeof(*(ctx)), field))); \
		pointer_;                                                       \
	})

/* Copies a MAC address. MAC addresses are at even offsets; the compiler does not know this and
 * would copy bytewise. */
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

/* Clamps a length to constants, visibly to the verifier at the point of use. Linux before 6.8 loses
 * the bounds of 32-bit values that were spilled to the stack, and Linux before 6.11 learns nothing
 * from the single comparison into which the compiler merges two. */
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
