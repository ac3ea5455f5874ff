// SPDX-License-Identifier: Apache-2.0

//! The kernel and the C library, and what the standard library of Rust would have of them.

pub mod clock;
pub mod diag;
pub mod errno;
pub mod fd;
pub mod lock;
pub mod mmap;
pub mod real;
#[cfg(not(test))]
mod runtime;
pub mod signals;
pub mod socket;
pub mod syscall;
pub mod uncancelled;
pub mod waiter;

pub use clock::Deadline;
pub use errno::{Errno, Outcome};
pub use fd::{EventFd, Fd, FdCell, Number, NO_FD};
pub use lock::{Guard, Lock};
pub use mmap::Mmap;
pub use signals::Section;

/// Writes a line to standard error.
pub fn report(text: &str) {
    let line = alloc::format!("beeline-hoststack: {text}\n");
    // SAFETY: the line's octets.
    unsafe { real::write(2, line.as_ptr().cast(), line.len()) };
}
