// SPDX-License-Identifier: Apache-2.0

//! What a thread polls while it sleeps on sessions: an epoll instance of its own, with their events edge-triggered.
//!
//! Events are never read. So no thread can take one from another thread, or from an instance of the program.

use crate::{hidden, lock, real};
use libc::{c_int, epoll_event, EPOLLET, EPOLLIN, EPOLL_CTL_ADD};
use std::cell::Cell;

/// Bell of one thread, and the process that made it: a child of fork must not share its parent's.
struct Bell {
    fd: Cell<c_int>,
    process: Cell<u32>,
}

thread_local! {
    static BELL: Bell = const { Bell { fd: Cell::new(-1), process: Cell::new(0) } };
}

impl Drop for Bell {
    fn drop(&mut self) {
        hidden::dispose(self.fd.get());
    }
}

impl Bell {
    fn fd(&self) -> c_int {
        if self.fd.get() < 0 || self.process.get() != lock::process() {
            hidden::dispose(self.fd.get());
            // SAFETY: no preconditions.
            let made = unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) };
            self.fd.set(hidden::adopt(made as c_int).unwrap_or(-1));
            self.process.set(lock::process());
        }
        self.fd.get()
    }
}

/// hear returns this thread's bell, which rings from now on when one of `events` is signalled. What it rang for
/// before is forgotten, so the caller has to look at the sessions afterwards.
pub fn hear(events: impl Iterator<Item = c_int>) -> c_int {
    let Ok(fd) = BELL.try_with(Bell::fd) else { return -1 };
    let before = real::errno();
    for event in events.filter(|&event| event >= 0) {
        let mut wanted = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: 0 };
        // SAFETY: the event is this function's. It may be there already.
        unsafe { real::epoll_ctl(fd, EPOLL_CTL_ADD, event, &mut wanted) };
    }
    silence(fd);
    real::set_errno(before);
    fd
}

/// silence takes all edges.
fn silence(fd: c_int) {
    let mut taken = [epoll_event { events: 0, u64: 0 }; 64];
    // SAFETY: the list has that many places; no mask.
    while unsafe { real::epoll_pwait(fd, taken.as_mut_ptr(), 64, 0, std::ptr::null()) } == 64 {}
}
