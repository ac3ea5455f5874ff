// SPDX-License-Identifier: Apache-2.0

//! What the library did, for the agent ([`crate::page`]), for tests, and for whoever looks with a debugger.

use core::sync::atomic::{AtomicU64, Ordering};

#[repr(C)]
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

/// Part of the page: docs/develop/hoststack.md has their order.
#[repr(C, align(64))]
pub struct Counters {
    /// Connections whose rings were mapped; those of them that had no room in the list.
    pub attached: Counter,
    pub unlisted: Counter,
    /// Octets received from and sent into rings.
    pub received: Counter,
    pub sent: Counter,
    /// Impossible indices of peers.
    pub violations: Counter,
    /// Connections that left their rings because the agent has switched them off.
    pub returned: Counter,
    refused: [Counter; REFUSALS],
}

/// Why a connection, or an offer, did not get rings.
#[derive(Clone, Copy)]
pub enum Refusal {
    /// The other end is on another host or in another network namespace.
    Elsewhere,
    /// The other end has not answered: it has no library, or does not admit the server.
    NoAnswer,
    /// The program has forked before, passed the descriptor on, or asked for something that only the kernel has.
    Kept,
    /// The process has as many connections on rings as it may. Each attempt counts.
    Limit,
    /// No memory, descriptor, name or watch of epoll for it could be had. Each attempt counts, and each connection that
    /// leaves its rings for it.
    Memory,
    /// An offer was not what it has to be. Each counts.
    Offer,
}

const REFUSALS: usize = 6;

impl Counters {
    pub const fn new() -> Self {
        Self {
            attached: Counter::new(),
            unlisted: Counter::new(),
            received: Counter::new(),
            sent: Counter::new(),
            violations: Counter::new(),
            returned: Counter::new(),
            refused: [const { Counter::new() }; REFUSALS],
        }
    }

    pub fn refuse(&self, why: Refusal) {
        if let Some(counter) = self.refused.get(why as usize) {
            counter.add(1);
        }
    }
}

/// Stores how many connections were attached, how many octets were received from and sent
/// into rings, and how many violations there were.
///
/// # Safety
/// `out` has room for four numbers of 64 bits.
#[no_mangle]
pub unsafe extern "C" fn beeline_hoststack_counters(out: *mut u64) {
    let all = crate::telemetry::page::counters();
    for (i, counter) in [&all.attached, &all.received, &all.sent, &all.violations].into_iter().enumerate() {
        // SAFETY: the caller has room for four.
        unsafe { out.add(i).write(counter.0.load(Ordering::Relaxed)) };
    }
}
