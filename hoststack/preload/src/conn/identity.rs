// SPDX-License-Identifier: Apache-2.0

//! Whether a descriptor still has the connection that its session was made for.
//!
//! A socket may be connected again, and a number may be closed and used again by a system call that the library does not
//! see. Each place where the library learns of it without a further system call in send and receive is here:
//! a number that the kernel has just returned, a connect(2), and an answer of the kernel that a ring does not expect.

use crate::conn::session::{Identity, Session};
use crate::conn::{offer, stream};
use crate::fdtable::{descriptors, table};
use crate::sys::lock;
use crate::telemetry::page;
use beeline_ring::Role;
use core::mem::size_of;
use core::sync::atomic::Ordering;
use libc::c_int;

/// The cookie of a session for which it was not asked. No socket has it.
pub const UNKNOWN: u64 = 0;

/// cookie is the kernel's number of a socket, which no other socket gets.
pub fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    let place = core::ptr::from_mut(&mut cookie).cast();
    // SAFETY: SO_COOKIE stores eight octets.
    let result = unsafe { crate::sys::real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, place, &mut length) };
    (result == 0).then_some(cookie)
}

/// cookie_of is that of a session. An acceptor's is not asked for before it is needed, which is never for short connections:
/// until then the addresses tell whether `fd` is its connection.
pub fn cookie_of(session: &Session, fd: c_int) -> Option<u64> {
    let known = session.cookie.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return Some(known);
    }
    let (server, client) = session.identity().ends?;
    let found = Some(fd).filter(|&fd| descriptors::has_ends(fd, server, client)).and_then(cookie)?;
    session.cookie.store(found, Ordering::Relaxed);
    Some(found)
}

/// same_socket is a descriptor of the table whose session is the socket `fd`.
pub fn same_socket(fd: c_int) -> Option<c_int> {
    let cookie = cookie(fd)?;
    let is_same = |other| table::session(other).is_some_and(|session| cookie_of(&session, other) == Some(cookie));
    table::descriptors().filter(|&other| other != fd).find(|&other| is_same(other))
}

/// is_socket_of reports whether a descriptor is the socket of a session.
pub fn is_socket_of(session: &Session, fd: c_int) -> bool {
    let before = crate::sys::real::errno();
    let is_same = cookie_of(session, fd).is_some_and(|known| cookie(fd) == Some(known));
    crate::sys::real::set_errno(before);
    is_same
}

/// made is called with a number that the kernel has just returned: what is known of it is of a file that was closed by a
/// call that the library did not see.
pub fn made(fd: c_int) {
    table::forget_listener(fd);
    if fd >= 0 && (table::session(fd).is_some() || table::epoll(fd).is_some()) && !lock::in_vfork_child() {
        forget(fd);
    }
}

/// verify forgets a session whose descriptor is another file now.
pub fn verify(fd: c_int) {
    let is_other = table::session(fd).is_some_and(|session| !is_socket_of(&session, fd));
    if is_other && !lock::in_vfork_child() {
        forget(fd);
    }
}

/// forget is the end of a descriptor that was closed unseen. The number may be another file, which is left alone.
fn forget(fd: c_int) {
    if let Some(session) = table::take_session(fd) {
        abandon(session.forever(), fd);
    }
    if let Some(epoll) = table::take_epoll(fd) {
        epoll.drop_descriptor(fd, || table::descriptor_of(epoll));
    }
}

fn abandon(session: &'static Session, fd: c_int) {
    if session.side().owners.remove() {
        session.was_last.store(true, Ordering::Relaxed);
    }
    let was_last_here = session.descriptors.fetch_sub(1, Ordering::AcqRel) == 1;
    let watches = session.watches.lock().clone();
    for (epoll, slot) in watches {
        match was_last_here {
            true => epoll.closed(slot, session, false),
            false => epoll.lost(slot, session, fd),
        }
    }
    // Without this hint the peer takes a FIN before its octets were read for that of a killed process, whose kernel would
    // have sent a RST.
    if let Some(rings) = session.rings().filter(|rings| !session.is_readable(rings)) {
        rings.header.leave(rings.role);
    }
}

/// reconnected is what becomes of a session whose socket connect(2) has taken from its connection. Without rings, it begins
/// as a new one. A connection that has had rings is on the kernel from then on.
pub fn reconnected(session: &'static Session) {
    let begins = offer::exclusively(session, || {
        session.close_mailbox();
        let side = session.side();
        for way in [&side.receive, &side.send] {
            way.kernel.store(0, Ordering::Relaxed);
        }
        side.error.store(0, Ordering::Relaxed);
        session.merits.begin();
        session.suspect.store(false, Ordering::Relaxed);
        session.identify(Identity { role: Role::Connector, side, ends: None });
    });
    if begins {
        return;
    }
    let side = session.side();
    side.stays.store(1, Ordering::SeqCst);
    session.leave_rings();
    for way in [&side.receive, &side.send] {
        way.leave();
    }
    side.error.store(0, Ordering::Relaxed);
    page::note(side);
    stream::resync_all(session);
    session.wake();
}
