/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* By which system call a socket is read, or a message is sent. Programs of type sk_msg and
 * tracepoints do not get its flags, so they read the arguments of the call. What is done by other
 * calls takes TCP: io_uring has its own place for flags, and 32-bit programs other numbers. */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"

/* Linux: arch/x86/include/asm/ptrace.h, arch/arm64/include/asm/ptrace.h */
struct pt_regs___x86 {
	unsigned long orig_ax, dx, r10;
} __attribute__((preserve_access_index));

struct pt_regs___arm64 {
	__u64 regs[31];
	__s32 syscallno;
} __attribute__((preserve_access_index));

/* Linux: include/linux/socket.h */
enum mesh_flags { MESH_MSG_OOB = 1, MESH_MSG_TRUNC = 0x20, MESH_MSG_WAITALL = 0x100 };

/* What a call does with a socket, and which of its arguments has flags. */
enum mesh_call {
	MESH_OTHER_CALL = 0,
	MESH_SENDS = 1,
	MESH_READS_DATA = 2,
	MESH_SPLICES = 4, /* from one descriptor to another: one of them is the socket */
	MESH_FLAGS_THIRD = 8,
	MESH_FLAGS_FOURTH = 16,
};

/* Linux: arch/x86/entry/syscalls/syscall_64.tbl */
static __always_inline __u32 mesh_call_x86(__u64 number)
{
	switch (number) {
	case 0:	  /* read */
	case 19:  /* readv */
	case 327: /* preadv2 */
		return MESH_READS_DATA;
	case 1:	  /* write */
	case 20:  /* writev */
	case 328: /* pwritev2 */
		return MESH_SENDS;
	case 40:  /* sendfile */
	case 275: /* splice */
		return MESH_SENDS | MESH_SPLICES;
	case 45:  /* recvfrom */
	case 299: /* recvmmsg */
		return MESH_READS_DATA | MESH_FLAGS_FOURTH;
	case 47: /* recvmsg */
		return MESH_READS_DATA | MESH_FLAGS_THIRD;
	case 46: /* sendmsg */
		return MESH_SENDS | MESH_FLAGS_THIRD;
	case 44:  /* sendto */
	case 307: /* sendmmsg */
		return MESH_SENDS | MESH_FLAGS_FOURTH;
	}
	return MESH_OTHER_CALL;
}

/* Linux: include/uapi/asm-generic/unistd.h */
static __always_inline __u32 mesh_call_arm64(__u64 number)
{
	switch (number) {
	case 63:  /* read */
	case 65:  /* readv */
	case 286: /* preadv2 */
		return MESH_READS_DATA;
	case 64:  /* write */
	case 66:  /* writev */
	case 287: /* pwritev2 */
		return MESH_SENDS;
	case 71: /* sendfile */
	case 76: /* splice */
		return MESH_SENDS | MESH_SPLICES;
	case 207: /* recvfrom */
	case 243: /* recvmmsg */
		return MESH_READS_DATA | MESH_FLAGS_FOURTH;
	case 212: /* recvmsg */
		return MESH_READS_DATA | MESH_FLAGS_THIRD;
	case 211: /* sendmsg */
		return MESH_SENDS | MESH_FLAGS_THIRD;
	case 206: /* sendto */
	case 269: /* sendmmsg */
		return MESH_SENDS | MESH_FLAGS_FOURTH;
	}
	return MESH_OTHER_CALL;
}

/* Returns bits of enum mesh_call for the call of the calling process, and the flags that it has
 * given. */
static __always_inline __u32 mesh_current_call(__u64 *flags)
{
	void *registers = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	__u32 call = MESH_OTHER_CALL;
	__u64 third = 0, fourth = 0;

	if (bpf_core_field_exists(struct pt_regs___x86, orig_ax)) {
		struct pt_regs___x86 *x86 = registers;

		call = mesh_call_x86(BPF_CORE_READ(x86, orig_ax));
		third = BPF_CORE_READ(x86, dx);
		fourth = BPF_CORE_READ(x86, r10);
	} else if (bpf_core_field_exists(struct pt_regs___arm64, syscallno)) {
		struct pt_regs___arm64 *arm64 = registers;

		call = mesh_call_arm64((__u32)BPF_CORE_READ(arm64, syscallno));
		third = BPF_CORE_READ(arm64, regs[2]);
		fourth = BPF_CORE_READ(arm64, regs[3]);
	}
	*flags = call & MESH_FLAGS_THIRD ? third : call & MESH_FLAGS_FOURTH ? fourth : 0;
	return call;
}
