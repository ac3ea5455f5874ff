// SPDX-License-Identifier: Apache-2.0

//! The kernel and the C library, and what the standard library of Rust would have of them.

pub mod bell;
pub mod clock;
pub mod diag;
pub mod hidden;
pub mod lock;
pub mod real;
#[cfg(not(test))]
mod runtime;
pub mod signals;
pub mod uncancelled;
