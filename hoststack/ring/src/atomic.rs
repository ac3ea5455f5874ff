// SPDX-License-Identifier: Apache-2.0

//! Atomics, or loom's, which try all orders of their operations.

#[cfg(not(loom))]
pub use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
