// SPDX-License-Identifier: Apache-2.0

//! How both ends of a connection agree on rings, while the kernel's connection carries it.
//!
//! The connector opens an offer socket, a Unix socket in the abstract namespace with the cookie of its TCP socket as
//! name. Abstract names belong to a network namespace, as TCP connections within one do, so no file system has to be
//! shared. The acceptor asks the kernel for the cookie by the addresses of the connection, makes the memory, and sends
//! it to that socket. Each end checks that the other has the user that the kernel names as owner of the other socket.
//!
//! Neither waits for the other. When a connection has earned rings (`earn`), the acceptor tries at the next operation,
//! the 2nd, 4th, 8th after it and so on, and the connector looks for an offer before each of its next operations,
//! and then before as many. While the connection is young both also do so after some time: on a busy machine one of
//! them may be much later than the other.

mod acceptor;
mod connector;
mod message;

use crate::conn::{earn, Session};
use crate::sys::{errno, Section};
use crate::telemetry::{page, Refusal};
use beeline_ring::Role;
pub use connector::look;
use core::sync::atomic::Ordering;
use libc::c_int;

/// After as many operations an end without rings stops trying.
const LAST_TRY: u32 = 1024;

/// And time since it has begun to, in milliseconds: the other end may have fewer operations, or not have run yet.
const LAST_AGE: u64 = 2000;

/// A peer that is about to send, or a thread in a call, is awaited for longer.
const LAST_AGE_OF_OFFER: u64 = 2 * LAST_AGE;

/// Until LAST_AGE an end also tries after so many milliseconds: the acceptor, which makes ten system calls for it, and
/// the connector, which makes one.
const GAP_OF_ACCEPTOR: u64 = 64;
const GAP_OF_CONNECTOR: u64 = 16;

/// A connector looks for an offer before each of its next operations, and later when the acceptor may have made
/// one: a look is a system call, and most peers never make an offer.
const FIRST_LOOKS: u32 = 8;

/// Takes an offer at times; called before each operation on a session.
pub fn before(session: &'static Session, fd: c_int) {
    if page::is_off() {
        session.leave_rings();
        if session.offer_socket.number().is_some() || !session.merits.is_open() {
            exclusively(session, || stop(session));
        }
        return;
    }
    look_at_times(session, fd);
}

fn look_at_times(session: &'static Session, fd: c_int) {
    if session.offer_socket.number().is_none() {
        return;
    }
    let n = session.merits.operations.load(Ordering::Relaxed);
    if n <= FIRST_LOOKS || session.offer_connection.number().is_some() || is_time(session, n) {
        look(session, fd);
    }
}

/// Returns whether an end that has asked tries at this operation.
fn is_time(session: &Session, n: u32) -> bool {
    let merits = &session.merits;
    let gap = match session.role() {
        Role::Acceptor => GAP_OF_ACCEPTOR,
        Role::Connector => GAP_OF_CONNECTOR,
    };
    n.is_power_of_two() || merits.waited() <= LAST_AGE && merits.is_due(gap)
}

/// Counts an operation that moved octets, and asks for rings if the session has earned them.
pub fn after(session: &'static Session, fd: c_int) {
    within(session, fd, 0);
}

/// Like `after`, for a part of an operation. So many octets of it are left.
pub fn within(session: &'static Session, fd: c_int, left: usize) {
    if session.is_attached()
        || session.anticipated.load(Ordering::Relaxed)
        || session.merits.is_settled()
        || page::is_off()
    {
        return;
    }
    let n = session.merits.operations.fetch_add(1, Ordering::Relaxed) + 1;
    if session.merits.asks() || earn::earns(session, fd, n, left) {
        exclusively(session, || ask(session, fd));
        if left > 0 {
            look_at_times(session, fd);
        }
    }
}

/// Tries to get the rings that an end has earned.
fn ask(session: &'static Session, fd: c_int) {
    let (n, end) = (session.merits.operations.load(Ordering::Relaxed), session.end());
    if end.pinned.load(Ordering::Relaxed) != 0 {
        return give_up(session, Refusal::Kept);
    }
    let is_shared = || !end.owners.is_alone();
    if n > LAST_TRY && session.merits.waited() > LAST_AGE {
        if !connector::has_offer(session, fd) || session.merits.waited() > LAST_AGE_OF_OFFER {
            give_up(session, if is_shared() { Refusal::Kept } else { Refusal::NoAnswer });
        }
        return;
    }
    // An attempt that has waited for a thread in a call is made as soon as that has returned.
    let tries = !session.merits.is_open() || is_time(session, n);
    // A process that has forked may close its descriptor yet, as servers do.
    if !tries || is_shared() {
        return;
    }
    match session.role() {
        Role::Connector => connector::open_offer_socket(session, fd),
        Role::Acceptor => without_calls(session, || acceptor::try_offer(session, fd)),
    }
}

/// Runs `f`, which may attach the session, unless a thread is in a call of the kernel. Then no further call
/// of the kernel begins, so that the next attempt finds none.
fn without_calls(session: &Session, f: impl FnOnce()) {
    if !session.merits.shut() {
        return;
    }
    f();
    if !session.is_attached() {
        session.merits.reopen();
    }
}

/// Returns whether a session stays on the kernel for good.
pub fn is_settled(session: &Session) -> bool {
    let over = session.merits.is_settled() || session.end().pinned.load(Ordering::Relaxed) != 0;
    over && !session.is_attached()
}

/// Leaves a session to the kernel for good.
fn give_up(session: &Session, why: Refusal) {
    if session.is_attached() {
        return;
    }
    // One that was left out is counted.
    if !session.merits.left_out.load(Ordering::Relaxed) {
        page::counters().refuse(why);
    }
    session.merits.settle();
    stop(session);
}

/// Ends an attempt.
fn stop(session: &Session) {
    session.close_offer_socket();
    session.merits.reopen();
}

/// Runs `f` unless another thread does so for this session, and keeps errno.
pub fn exclusively(session: &'static Session, f: impl FnOnce()) -> bool {
    let _section = Section::enter();
    let Some(_alone) = unattached(session) else { return false };
    errno::preserve(f);
    true
}

/// A session that gets no rings meanwhile.
pub struct Alone(pub &'static Session);

/// Returns None if the session has rings, or another thread is about to get some.
pub fn unattached(session: &'static Session) -> Option<Alone> {
    if session.is_attached() || session.upgrading.swap(true, Ordering::SeqCst) {
        return None;
    }
    let alone = Alone(session);
    (!session.is_attached()).then_some(alone)
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.upgrading.store(false, Ordering::Release);
    }
}
