// SPDX-License-Identifier: Apache-2.0

//! Numbers that were closed, and used again, by a system call that the library did not see.

use super::{fork, table};
use crate::conn::identity::{cookie_of, is_socket_of};
use crate::conn::{watch, Session};
use crate::sys::socket;
use core::sync::atomic::Ordering;
use libc::c_int;

/// Returns a descriptor of the table whose session is the socket `fd`.
pub fn same_socket(fd: c_int) -> Option<c_int> {
    let cookie = socket::cookie(fd)?;
    let is_same = |other| table::session(other).is_some_and(|session| cookie_of(&session, other) == Some(cookie));
    table::descriptors().filter(|&other| other != fd).find(|&other| is_same(other))
}

/// Takes a number that the kernel has just returned: what is known of it is of a file that was closed by a
/// call that the library did not see.
pub fn made(fd: c_int) {
    table::forget_listener(fd);
    if fd >= 0 && (table::session(fd).is_some() || table::epoll(fd).is_some()) && !fork::in_vfork_child() {
        forget(fd);
    }
}

/// Forgets a session whose descriptor is another file now.
pub fn verify(fd: c_int) {
    let is_other = table::session(fd).is_some_and(|session| !is_socket_of(&session, fd));
    if is_other && !fork::in_vfork_child() {
        forget(fd);
    }
}

/// Ends a descriptor that was closed unseen. The number may be another file, which is left alone.
fn forget(fd: c_int) {
    if let Some(session) = table::take_session(fd) {
        abandon(session.forever(), fd);
    }
    if let Some(epoll) = table::take_epoll(fd) {
        epoll.drop_descriptor(fd, || table::descriptor_of(epoll));
    }
}

fn abandon(session: &'static Session, fd: c_int) {
    if session.end().owners.remove() {
        session.was_last.store(true, Ordering::Relaxed);
    }
    let was_last_here = session.descriptors.fetch_sub(1, Ordering::AcqRel) == 1;
    watch::each_watch(session, |epoll, slot| match was_last_here {
        true => epoll.closed(slot, session, false),
        false => epoll.lost(slot, session, fd),
    });
    // Without this hint the peer takes a FIN before its octets were read for that of a killed process, whose kernel
    // would have sent a RST.
    if let Some(rings) = session.rings().filter(|rings| !session.is_readable(rings)) {
        rings.header.leave(rings.role);
    }
}
