// SPDX-License-Identifier: Apache-2.0

//! What a thread polls while it sleeps on sessions: an epoll instance of its own, with their events edge-triggered.
//!
//! Events are never read. So no thread can take one from another thread, or from an instance of the program.

use crate::sys::errno::{self, EEXIST};
use crate::sys::{lock, real, Deadline, Fd, Outcome};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{c_int, c_void, epoll_event, EPOLLET, EPOLLIN, EPOLL_CTL_ADD};

/// The key of the threads' waiters, plus one. Threads have none before their first wait, and programs that have no
/// session never make the key.
/// The exchange that stores the key pairs with the loads that acquire it.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The waiter of one thread, and the process that made it: a child of fork must not share its parent's.
#[derive(Clone, Copy)]
struct Waiter {
    fd: c_int,
    process: u32,
}

impl Waiter {
    /// Returns what pthread_setspecific(3) keeps, without memory of its own; never null.
    fn pack(self) -> *mut c_void {
        without_provenance_mut((self.process as usize) << 32 | (self.fd as usize + 1))
    }

    fn unpack(kept: *mut c_void) -> Option<Self> {
        let word = kept.addr();
        let fd = (word as u32).checked_sub(1)? as c_int;
        Some(Self { fd, process: (word >> 32) as u32 })
    }

    /// Returns this thread's waiter, made at its first use in this process.
    fn of_thread() -> Option<c_int> {
        let key = key()?;
        // SAFETY: the key is never deleted.
        let kept = Self::unpack(unsafe { libc::pthread_getspecific(key) });
        if let Some(waiter) = kept.filter(|waiter| waiter.process == lock::process()) {
            return Some(waiter.fd);
        }
        drop(kept.and_then(|waiter| Fd::new(waiter.fd)));
        let made = Fd::adopt(real::epoll_create1(libc::EPOLL_CLOEXEC));
        let kept = made.as_ref().map_or(null_mut(), |fd| Self { fd: fd.number(), process: lock::process() }.pack());
        // SAFETY: as above.
        unsafe { libc::pthread_setspecific(key, kept) };
        made.map(Fd::into_number)
    }
}

fn key() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return Some(known - 1);
    }
    let mut made = 0;
    // SAFETY: the key is this function's; the destructor lives as long as the library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&mut made, Some(end_of_thread)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(other) => {
            // SAFETY: another thread was faster, so no one has used this key.
            unsafe { libc::pthread_key_delete(made) };
            Some(other - 1)
        }
    }
}

/// Closes the waiter of a thread that ends.
extern "C" fn end_of_thread(kept: *mut c_void) {
    drop(Waiter::unpack(kept).and_then(|waiter| Fd::new(waiter.fd)));
}

/// Makes this thread's waiter before it is needed.
pub fn prepare() {
    errno::preserve(Waiter::of_thread);
}

/// Waits until an event of the waiter is signalled, or `fd` has one of `events`, where RLIMIT_NOFILE does not allow to
/// poll both.
pub fn wait_with(waiter: c_int, fd: c_int, events: i16, deadline: Deadline) -> Outcome {
    let mut wanted = epoll_event { events: events as u32, u64: 0 };
    // SAFETY: the event is this function's.
    errno::outcome(unsafe { real::epoll_ctl(waiter, EPOLL_CTL_ADD, fd, &mut wanted) } as isize)?;
    let limit = deadline.left().map_or(-1, crate::sys::clock::milliseconds);
    // SAFETY: room for one event; no mask.
    let result =
        errno::outcome(unsafe { real::epoll_pwait(waiter, &mut wanted, 1, limit, core::ptr::null()) } as isize);
    // SAFETY: no event.
    unsafe { real::epoll_ctl(waiter, libc::EPOLL_CTL_DEL, fd, null_mut()) };
    result
}

/// Returns this thread's waiter, which is readable from now on when one of `events` is signalled. What was before is
/// forgotten, so the caller has to look at the sessions afterwards. None if the kernel has no room for it: then the
/// sessions have to fall back.
pub fn arm(events: impl Iterator<Item = c_int>) -> Option<c_int> {
    errno::preserve(|| {
        Waiter::of_thread().filter(|&fd| {
            let mut all = true;
            for event in events {
                all &= add(fd, event);
            }
            take_edges(fd);
            all
        })
    })
}

/// Adds an event; false if there is no room. It may be there already.
fn add(fd: c_int, event: c_int) -> bool {
    let mut wanted = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: 0 };
    // SAFETY: the event is this function's.
    unsafe { real::epoll_ctl(fd, EPOLL_CTL_ADD, event, &mut wanted) == 0 || errno::last() == EEXIST }
}

/// Takes all edges.
fn take_edges(fd: c_int) {
    let mut taken = [epoll_event { events: 0, u64: 0 }; 64];
    // SAFETY: the list has that many places; no mask.
    while unsafe { real::epoll_pwait(fd, taken.as_mut_ptr(), 64, 0, core::ptr::null()) } == 64 {}
}
