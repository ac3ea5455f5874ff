// SPDX-License-Identifier: Apache-2.0

//! The order of what a thread sends by different connections without waiting for answers.
//!
//! The kernel reports connections in the order in which octets came. A peer that looks at its rings before it asks the
//! kernel does not know that order. So a ring says whether its octets follow others that went by a connection of the
//! kernel, and the peer's epoll_wait(2) reports them behind what the kernel has.

use crate::conn::Session;
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The session by which a thread has sent last by the kernel, if nothing was received by it since.
#[repr(align(64))]
struct Unanswered(AtomicPtr<Session>);

/// By threads. Two that share a place may find an order that there is not.
static UNANSWERED: [Unanswered; 16] = [const { Unanswered(AtomicPtr::new(null_mut())) }; 16];

/// Returns this thread's place. Stacks of threads are far from each other.
fn of_thread() -> &'static AtomicPtr<Session> {
    let on_stack = 0u8;
    let [first, ..] = &UNANSWERED;
    &UNANSWERED.get((from_ref(&on_stack).addr() >> 20) % UNANSWERED.len()).unwrap_or(first).0
}

/// Notes that the kernel's connection of a session has taken octets.
pub fn sent(session: &Session) {
    let place = of_thread();
    if !core::ptr::eq(place.load(Relaxed), session) {
        place.store(from_ref(session).cast_mut(), Relaxed);
    }
}

/// Returns whether what a session sends now follows octets of another session that the kernel may have yet.
pub fn is_behind(session: &Session) -> bool {
    let last = of_thread().load(Relaxed);
    !last.is_null() && !core::ptr::eq(last, session)
}

/// Notes that something was received by a session, or that it is no more.
pub fn answered(session: &Session) {
    let place = of_thread();
    if core::ptr::eq(place.load(Relaxed), session) {
        place.store(null_mut(), Relaxed);
    }
}
