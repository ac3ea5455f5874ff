// SPDX-License-Identifier: Apache-2.0

//! What the library did in this process, for tests and for whoever looks with a debugger.

use core::sync::atomic::{AtomicU64, Ordering};

pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

/// Connections whose rings were mapped; octets received from and sent into rings; impossible indices of peers.
pub static ATTACHED: Counter = Counter(AtomicU64::new(0));
pub static RECEIVED: Counter = Counter(AtomicU64::new(0));
pub static SENT: Counter = Counter(AtomicU64::new(0));
pub static VIOLATIONS: Counter = Counter(AtomicU64::new(0));

/// beeline_hoststack_counters stores the four counters above.
///
/// # Safety
/// `out` has room for four numbers of 64 bits.
#[no_mangle]
pub unsafe extern "C" fn beeline_hoststack_counters(out: *mut u64) {
    for (i, counter) in [&ATTACHED, &RECEIVED, &SENT, &VIOLATIONS].into_iter().enumerate() {
        // SAFETY: the caller has room for four.
        unsafe { out.add(i).write(counter.0.load(Ordering::Relaxed)) };
    }
}
