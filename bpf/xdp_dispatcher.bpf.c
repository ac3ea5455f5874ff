// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Runs several XDP programs on one device in sequence, by version 2 of libxdp's protocol
 * (lib/libxdp/protocol.org of xdp-tools): its tools find, add and remove programs here. Names,
 * numbers and layout are the protocol's. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define VERSION	     2
#define SLOTS	     10
#define NOT_REPLACED 31 /* returned by a slot whose program was detached */

/* Set by the loader. */
const volatile struct xdp_dispatcher_config {
	__u8 magic;
	__u8 dispatcher_version;
	__u8 num_progs_enabled;
	__u8 is_xdp_frags;
	__u32 chain_call_actions[SLOTS]; /* bit mask of the actions after which the next program
					    runs */
	__u32 run_prios[SLOTS];
	__u32 program_flags[SLOTS];
} conf = {};

/* A function that a program replaces. Its own body runs only while the program is being detached.
 * The call has no effect, but makes the verifier treat the function as one that changes packet
 * bounds: only such a function can be replaced by programs that do so (since Linux 6.13). */
#define SLOT(n)                                                   \
	__attribute__((noinline)) int prog##n(struct xdp_md *ctx) \
	{                                                         \
		volatile int action = NOT_REPLACED;               \
                                                                  \
		if (!ctx)                                         \
			return XDP_ABORTED;                       \
		bpf_xdp_adjust_tail(ctx, 0);                      \
		return action;                                    \
	}

SLOT(0)
SLOT(1)
SLOT(2)
SLOT(3)
SLOT(4)
SLOT(5)
SLOT(6)
SLOT(7)
SLOT(8)
SLOT(9)

/* The verifier removes the calls after the last program. */
#define RUN(n)                                                             \
	do {                                                               \
		__u32 action;                                              \
                                                                           \
		if (conf.num_progs_enabled <= n)                           \
			return XDP_PASS;                                   \
		action = prog##n(ctx);                                     \
		if (!(conf.chain_call_actions[n] & (1u << (action & 31)))) \
			return action;                                     \
	} while (0)

SEC("xdp")
int xdp_dispatcher(struct xdp_md *ctx)
{
	RUN(0);
	RUN(1);
	RUN(2);
	RUN(3);
	RUN(4);
	RUN(5);
	RUN(6);
	RUN(7);
	RUN(8);
	RUN(9);
	return XDP_PASS;
}

/* Older versions of libxdp read the version from the BTF. */
__uint(dispatcher_version, VERSION) SEC("xdp_metadata");

char _license[] SEC("license") = "Dual BSD/GPL";
